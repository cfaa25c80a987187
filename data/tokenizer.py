"""A sentencepiece tokenizer that loses nothing: decode(encode(text)) == text, for all Unicode text.

sentencepiece's defaults rewrite text (google/sentencepiece#520, #101, #863); `data.vocabulary`
trains models without any normalisation and with byte fallback, and `Tokenizer` refuses loaded
models that change text. One character is left that sentencepiece cannot tell from a space, its own
marker U+2581. It is escaped: with E = U+E000 (private use), U+2581 becomes "Ea" and E itself "Eb".
Models that `data.vocabulary` trained on text with tabs see U+E001 for a tab, and the reverse.

Decoding is done here, over bytes, because sentencepiece decodes single ids without their context
(google/sentencepiece#906, #1043): `decode` and the streaming decoder share one table id -> bytes.
"""

import codecs
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
import sentencepiece

from data.config import TokenizerConfig
from data.vocabulary import SWAP_TABS, TAB, train_model

MARKER = "\u2581"
ESCAPE = "\ue000"
PART_CHARACTERS = 1024
"""Characters per call of sentencepiece, which needs about 45 bytes of memory per byte of input."""

_UNESCAPE = re.compile(f"{ESCAPE}([ab])")
_PROBES = (
    "a\tb\nc",
    "  two  spaces ",
    "\n    x\n\n\tend\r\n",
    "…①ﬁ e\u0301 \u00a0\u200b\ufeff\0",
    "naïve 😀 日本 ▁x \ue000a",
    "<s></s><pad><unk><0x0A>",
)


class Tokenizer:
    """Text to token ids and back.

    Attributes: `size` (number of ids), `bos_id`, `eos_id`, `pad_id`, and `fingerprint` (first 16
    hex digits of the sha256 of the model's bytes).
    """

    def __init__(self, model: bytes, name: str = "this tokenizer") -> None:
        """Takes the bytes of a sentencepiece model; `name` is what error messages call it.

        Raises ValueError if the model is damaged, has no bos, eos or pad id, or changes text.
        """
        self.model = model
        self.fingerprint = hashlib.sha256(model).hexdigest()[:16]
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError(f"{name} is not a sentencepiece model.") from error
        self.size: int = self._processor.get_piece_size()
        self.bos_id: int = self._processor.bos_id()
        self.eos_id: int = self._processor.eos_id()
        self.pad_id: int = self._processor.pad_id()
        self._bytes = [self._bytes_of(id) for id in range(self.size)]
        self._pairs = self._adjacent_pairs()
        self._swaps_tabs = any(TAB in self._processor.id_to_piece(id) for id in range(self.size))
        self._check(name)

    @classmethod
    def train(cls, blocks: Iterable[str], config: TokenizerConfig) -> Self:
        """Trains a model on `blocks` of text; the same blocks and settings give the same bytes.

        Raises ValueError if `config.vocab_size` does not suit the text.
        """
        return cls(train_model(blocks, config))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a sentencepiece .model file. Raises ValueError if it is missing or unsuitable."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(
                f"There is no tokenizer file {path}. "
                "Type tokenizer.path=... with a sentencepiece .model file, or tokenizer.path=null."
            )
        return cls(path.read_bytes(), str(path))

    def save(self, path: str | Path) -> None:
        """Writes the sentencepiece model."""
        Path(path).write_bytes(self.model)

    def encode(self, text: str, *, limit: int = PART_CHARACTERS) -> list[int]:
        """Token ids of `text`, without special ids.

        A text of more than `limit` characters is encoded in parts. It is cut between two characters
        a, b only if no piece of the vocabulary contains "ab": then no merge (BPE) and no piece of
        any segmentation (unigram) can span the cut, so the tokens are those of the whole text. A
        part goes on past `limit` until the first such point, to the end of the text if there is
        none. For unigram models this holds for exact scores; sentencepiece adds them up in float32
        from the start of its input, and over long inputs the rounding decides between segmentations
        that are nearly as good (seen in a text of 20 kB). Parts keep the sums short.

        Raises ValueError if `text` holds lone surrogates, which are not Unicode text.
        """
        check_unicode(text)
        encoded = self.encode_parts(self.parts(text, limit))
        return [id for part in encoded for id in part.tolist()]

    def encode_parts(self, parts: list[str]) -> list[np.ndarray]:
        """Token ids of each string made by `parts`, int32."""
        return self._processor.encode(parts, return_type="numpy", num_threads=1)

    def may_cut(self, before: str, after: str) -> bool:
        """Whether a text may be cut between these two characters (see `encode`)."""
        return self._escaped(before)[-1] + self._escaped(after)[0] not in self._pairs

    def parts(self, text: str, limit: int = PART_CHARACTERS) -> list[str]:
        """The escaped text, cut as `encode` describes. Joined they are the whole escaped text."""
        assert limit >= 1, limit
        text = self._escaped(text)
        parts = []
        begin = 0
        while len(text) - begin > limit:
            end = begin + limit
            while end < len(text) and text[end - 1 : end + 1] in self._pairs:
                end += 1
            parts.append(text[begin:end])
            begin = end
        if begin < len(text):
            parts.append(text[begin:])
        return parts

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`. Special ids are dropped; bytes that are not UTF-8 become U+FFFD.

        Raises ValueError on an id outside [0, size).
        """
        return self.unescape(b"".join(map(self.bytes_of, ids)).decode("utf-8", errors="replace"))

    def unescape(self, text: str) -> str:
        """Undoes the escaping; `text` must not end between an escape character and what follows."""
        # A model without a piece for a space writes the bytes of the marker that stands for it.
        text = text.replace(MARKER, " ")
        text = _UNESCAPE.sub(lambda match: MARKER if match[1] == "a" else ESCAPE, text)
        return self._swapped(text)

    def stream(self) -> "StreamDecoder":
        """A decoder for ids that arrive one at a time."""
        return StreamDecoder(self)

    def bytes_of(self, id: int) -> bytes:
        """Bytes that one id stands for, before unescaping; empty for special ids."""
        if not 0 <= id < self.size:
            raise ValueError(
                f"Token id {id} is not one of this tokenizer's ids 0 to {self.size - 1}."
            )
        return self._bytes[id]

    def _escaped(self, text: str) -> str:
        return self._swapped(text.replace(ESCAPE, ESCAPE + "b").replace(MARKER, ESCAPE + "a"))

    def _swapped(self, text: str) -> str:
        if self._swaps_tabs and TAB not in text:
            return text.replace("\t", TAB)  # ten times as fast as translate
        if self._swaps_tabs and ("\t" in text or TAB in text):
            return text.translate(SWAP_TABS)
        return text

    def _bytes_of(self, id: int) -> bytes:
        piece = self._processor.id_to_piece(id)
        if self._processor.is_byte(id):
            return bytes([int(piece[3:5], 16)])
        if self._processor.is_control(id) or self._processor.is_unknown(id):
            return b""
        return piece.replace(MARKER, " ").encode()

    def _adjacent_pairs(self) -> frozenset[str]:
        special = (
            self._processor.is_byte,
            self._processor.is_control,
            self._processor.is_unknown,
        )
        pairs = set()
        for id in range(self.size):
            if not any(is_special(id) for is_special in special):
                piece = self._processor.id_to_piece(id).replace(MARKER, " ")
                pairs.update(piece[i : i + 2] for i in range(len(piece) - 1))
        return frozenset(pairs)

    def _check(self, name: str) -> None:
        for role in ("bos", "eos", "pad"):
            id = getattr(self, f"{role}_id")
            if id < 0 or not self._processor.is_control(id):
                raise ValueError(
                    f"{name} has no {role} id, or one that text can produce. Train it with "
                    "bos_id, eos_id and pad_id >= 0, or type tokenizer.path=null to train one here."
                )
        for probe in _PROBES:
            if self.decode(self.encode(probe)) != probe:
                raise ValueError(
                    f"{name} changes text: {probe!r} comes back as "
                    f"{self.decode(self.encode(probe))!r}. Train it with byte_fallback=true, "
                    "normalization_rule_name=identity, remove_extra_whitespaces=false and "
                    "add_dummy_prefix=false, or type tokenizer.path=null to train one here."
                )


class StreamDecoder:
    """Decodes ids one at a time: all strings returned, joined, equal `decode` of all the ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, id: int) -> str:
        """Takes one id; returns the text that no later id can change (possibly empty)."""
        return self._certain(self._utf8.decode(self._tokenizer.bytes_of(id)))

    def flush(self) -> str:
        """Returns the rest, an incomplete character as U+FFFD, and starts afresh."""
        text = self._certain(self._utf8.decode(b"", final=True)) + self._held
        self._held = ""
        self._utf8.reset()
        return text

    def _certain(self, text: str) -> str:
        text = self._held + text
        self._held = ESCAPE if text.endswith(ESCAPE) else ""
        return self._tokenizer.unescape(text.removesuffix(self._held))


def check_unicode(text: str) -> None:
    """Raises ValueError, with the position, if `text` holds a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The text holds the lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}; that is not Unicode text and has no UTF-8 form. Replace or remove it."
        ) from None
