"""Trains a sentencepiece model that keeps every character.

The trainer uses the tab internally and can put none into a piece; code indented with tabs would
cost a token per tab. Therefore tabs change places with U+E001 (private use), here and in
`data.tokenizer`. The trainer also drops lines longer than its limit and lines that hold U+2585 or
NUL. That is only a matter of the sample here: blocks are cut at such characters before training,
and encoding falls back to bytes for whatever has no piece.
"""

import io
import re
from collections.abc import Iterable, Iterator

import sentencepiece

from data.config import TokenizerConfig

BLOCK_CHARACTERS = 4000
TAB = "\ue001"
SWAP_TABS = {ord("\t"): TAB, ord(TAB): "\t"}
"""For str.translate; its own inverse."""

_RESERVED = re.compile("[\0\t\u2581\u2585\ue000]+")
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")


def train_model(blocks: Iterable[str], config: TokenizerConfig) -> bytes:
    """Bytes of a model trained on `blocks` of text; deterministic.

    Ids 0 to 3 are unk, bos, eos and pad (control symbols, never matched in text), 4 to 259 the
    bytes. Raises ValueError, with the value to type, if `config.vocab_size` is too large or too
    small.
    """
    output = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_usable(blocks),
            model_writer=output,
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            byte_fallback=True,
            split_digits=True,
            max_sentence_length=1 << 30,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=3,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(_explanation(str(error), config)) from error
    return output.getvalue()


def sample_blocks(texts: Iterable[str], total_bytes: int, sample_bytes: int) -> Iterator[str]:
    """Blocks of about 4 kB, `sample_bytes` in all, spread evenly over `texts` of `total_bytes`."""
    seen = taken = 0
    for text in texts:
        for block in _blocks(text):
            size = len(block.encode())
            seen += size
            if taken * total_bytes < seen * min(sample_bytes, total_bytes):
                taken += size
                yield block


def _blocks(text: str) -> Iterator[str]:
    """Whole lines of together about BLOCK_CHARACTERS; a longer line is cut."""
    begin = 0
    while begin < len(text):
        end = text.rfind("\n", begin, begin + BLOCK_CHARACTERS) + 1
        if end <= begin:
            end = begin + BLOCK_CHARACTERS
        yield text[begin:end]
        begin = end


def _usable(blocks: Iterable[str]) -> Iterator[str]:
    for block in blocks:
        yield from filter(None, _RESERVED.split(block.translate(SWAP_TABS)))


def _explanation(message: str, config: TokenizerConfig) -> str:
    given = f"tokenizer.vocab_size={config.vocab_size}"
    if match := _TOO_LARGE.search(message):
        return (
            f"{given} is too large for this text: the largest possible value is {match[1]}. "
            f"Type tokenizer.vocab_size={match[1]} or less, or give more text."
        )
    if match := _TOO_SMALL.search(message):
        return (
            f"{given} is too small: the special ids, the bytes and the characters of this text "
            f"need {match[1]}. Type tokenizer.vocab_size={match[1]} or more, or lower "
            "tokenizer.character_coverage."
        )
    if "sentences_.empty()" in message:
        return (
            "the text holds nothing that a vocabulary can be trained on, only line ends, NULs or "
            "reserved characters (U+2581, U+2585, U+E000, U+E001). Give more text, or a tokenizer: "
            "tokenizer.path=FILE"
        )
    return f"sentencepiece could not train a vocabulary ({given}): {message}"
