"""The tokenizers that `python -m benchmarks.prepare` measures, and their libraries alone."""

import json
import os
import time
from pathlib import Path

from data.config import TokenizerConfig
from data.tokenizer import Tokenizer
from data.vocabulary import sample_blocks

KINDS = ("sentencepiece", "hf_json")

_BLOCK = 4000
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words of Llama 3."""


def train(kind: str, vocab_size: int, sample: str, folder: Path) -> Tokenizer:
    """A tokenizer trained on `sample` and saved in `folder`: BPE, of bytes if it is an hf_json."""
    if kind == "sentencepiece":
        size = len(sample.encode())
        config = TokenizerConfig(
            kind="sentencepiece",
            path=None,
            vocab_size=vocab_size,
            model_type="bpe",
            sample_bytes=size,
            character_coverage=0.9999,
            bos=None,
            eos=None,
            pad=None,
        )
        tokenizer = Tokenizer.train(sample_blocks([sample], size, size), config)
        tokenizer.save(folder)
        return tokenizer
    _train_json(vocab_size, sample, folder / "given")
    tokenizer = Tokenizer.load(folder / "given")
    tokenizer.save(folder)
    return tokenizer


def bare_speed(tokenizer: Tokenizer, folder: Path, sample: str, seconds: float) -> float:
    """Bytes per CPU second of the library alone, one thread, on strings in memory.

    Of sentencepiece on strings of 1,024 characters; of tokenizers on such of 4,000, shared by a
    call of `encode_batch` with all of them.
    """
    text = sample[: 1 << 20]
    if tokenizer.kind == "sentencepiece":
        texts, encode = tokenizer.parts(text), tokenizer.encode_parts
    else:
        import tokenizers

        library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        texts = [text[begin : begin + _BLOCK] for begin in range(0, len(text), _BLOCK)]

        def encode(texts: list[str]) -> list[list[int]]:
            return [one.ids for one in library.encode_batch(texts, add_special_tokens=False)]

    size = sum(len(one.encode()) for one in texts)
    passes, begin = 0, time.process_time()
    while passes < 2 or time.process_time() < begin + seconds:
        encode(texts)
        passes += 1
    return passes * size / (time.process_time() - begin)


def _train_json(vocab_size: int, sample: str, folder: Path) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Library

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    blocks = (sample[begin : begin + _BLOCK] for begin in range(0, len(sample), _BLOCK))
    library.train_from_iterator(blocks, trainer)
    folder.mkdir()
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
