"""Text to token ids and back without loss: decode(encode(text)) == text, for all Unicode text.

Two kinds have one interface: sentencepiece models, trained here or brought along
(data.sentencepiece_tokenizer), and Hugging Face tokenizer.json files (data.json_tokenizer).

Decoding is done here, over bytes, because the libraries decode single ids without their context
(google/sentencepiece#906, #1043): `decode` and the streaming decoder share one table id -> bytes.
"""

import codecs
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from data.config import TokenizerConfig
from data.cutting import PART_CHARACTERS
from data.folder import write_atomically
from data.marker import ESCAPE

FILES = {
    "sentencepiece": ("tokenizer.model",),
    "hf_json": ("tokenizer.json", "special_tokens_map.json"),
}
"""What a tokenizer of each kind is saved as, in a prepared folder and in a run's."""

PROBES = (
    "a\tb\nc",
    "  two  spaces ",
    "\n    x\n\n\tend\r\n",
    "…①ﬁ e\u0301 \u00a0\u200b\ufeff\0",
    "naïve 😀 日本 ▁x \ue000a",
    "UPPER Lower 1234567 don't 'Ll",
    "<s></s><pad><unk><0x0A>",
)
"""Texts that a tokenizer must give back: what normalisation changes, and strings of special ids."""


class Tokenizer(ABC):
    """Text to token ids and back.

    Attributes: `kind` (a key of `FILES`), `size` (number of ids: the highest one + 1), `bos_id`,
    `eos_id`, `pad_id`, `files` (names and contents of what is saved), `notes` (what a user should
    know of the loaded file), and `context` (so many characters before and after a place decide
    whether a text may be cut there).
    """

    kind: str
    size: int
    bos_id: int
    eos_id: int
    pad_id: int
    files: dict[str, bytes]
    notes: tuple[str, ...] = ()
    context: int = 1

    @staticmethod
    def train(blocks: Iterable[str], config: TokenizerConfig) -> "Tokenizer":
        """Trains a sentencepiece model on `blocks` of text; the same blocks and settings give the
        same bytes.

        Raises ValueError if `config.vocab_size` does not suit the text.
        """
        from data.sentencepiece_tokenizer import SentencepieceTokenizer
        from data.vocabulary import train_model

        return SentencepieceTokenizer(train_model(blocks, config))

    @staticmethod
    def load(path: str | Path, **roles: str | None) -> "Tokenizer":
        """Reads a sentencepiece .model or a Hugging Face tokenizer.json, told by the contents.

        path: the file, or a folder that holds one.
        roles: bos, eos, pad: tokens of a tokenizer.json; None: as the files beside it say.

        Raises ValueError if it is missing or unsuitable.
        """
        path = Path(path)
        path = tokenizer_path(path) if path.is_dir() else path
        if not path.is_file():
            raise ValueError(
                f"There is no tokenizer file {path}. Type tokenizer.path=... with a sentencepiece "
                ".model file, tokenizer=hf_json tokenizer.path=... with a Hugging Face "
                "tokenizer.json, or tokenizer.path=null to train one."
            )
        data = path.read_bytes()
        if is_json(path, data):
            from data.json_tokenizer import load_json

            return load_json(path, data, roles)
        from data.sentencepiece_tokenizer import SentencepieceTokenizer

        return SentencepieceTokenizer(data, str(path))

    def save(self, folder: str | Path) -> Path:
        """Writes the `files`, so that `load` reads this tokenizer; returns the path for it."""
        for name in reversed(self.files):  # the one that `load` looks for is written last
            write_atomically(Path(folder) / name, self.files[name])
        return Path(folder) / FILES[self.kind][0]

    @cached_property
    def fingerprint(self) -> str:
        """First 16 hex digits of the sha256 of all that is saved."""
        return hashlib.sha256(b"".join(self.files.values())).hexdigest()[:16]

    @abstractmethod
    def parts(self, text: str, limit: int = PART_CHARACTERS) -> list[str]:
        """`text` in pieces that are encoded one by one, escaped as the vocabulary needs it.

        limit: characters from which on a long text is cut, where that cannot change its tokens.
        """

    @abstractmethod
    def encode_parts(self, parts: list[str]) -> list[np.ndarray]:
        """Token ids of each string made by `parts`, int32."""

    @abstractmethod
    def find_cut(self, text: str, begin: int, end: int) -> int | None:
        """The first place in [begin, end) that was found where cutting `text` changes no token.

        text: with `context` characters before begin and after end, if there are so many.
        """

    @abstractmethod
    def unescape(self, text: str) -> str:
        """Undoes the escaping of `parts`; `text` must not end inside of an escape."""

    @cached_property
    @abstractmethod
    def _bytes(self) -> list[bytes]:
        """Bytes that each id stands for."""

    def encode(self, text: str, *, limit: int = PART_CHARACTERS) -> list[int]:
        """Token ids of `text`, without special ids. limit: see `parts`.

        Raises ValueError if `text` holds lone surrogates, which are not Unicode text.
        """
        check_unicode(text)
        return [id for part in self.encode_parts(self.parts(text, limit)) for id in part.tolist()]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`. Special ids are dropped; bytes that are not UTF-8 become U+FFFD.

        Raises ValueError on an id outside [0, size).
        """
        return self.unescape(b"".join(map(self.bytes_of, ids)).decode("utf-8", errors="replace"))

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


def given_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """The tokenizer that `tokenizer.path` names.

    Raises ValueError if it is missing or unsuitable, or of another kind than `tokenizer.kind`.
    """
    path = Path(config.path)
    path = path / FILES[config.kind][0] if path.is_dir() else path
    if path.is_file() and is_json(path, path.read_bytes()) != (config.kind == "hf_json"):
        kind = "a sentencepiece model" if config.kind == "hf_json" else "a tokenizer.json"
        raise ValueError(
            f"tokenizer.path={config.path} is {kind}, but tokenizer.kind={config.kind}. "
            f"Type {to_type(path)}"
        )
    return Tokenizer.load(path, bos=config.bos, eos=config.eos, pad=config.pad)


def tokenizer_path(folder: Path) -> Path:
    """The file to `load` of a folder; that of a sentencepiece model if there is none."""
    paths = [folder / files[0] for files in FILES.values()]
    return next((path for path in paths if path.is_file()), paths[0])


def to_type(path: Path) -> str:
    """The settings that give the tokenizer at `path`."""
    from conf.cli import override  # Hydra, which encoding processes have no need of

    choice = "hf_json" if is_json(path, path.read_bytes()) else None
    typed = override("tokenizer.path", str(path))
    return f"tokenizer={choice} {typed}" if choice else typed


def is_json(path: Path, data: bytes) -> bool:
    """Whether a file is JSON, which no sentencepiece model begins like."""
    return path.suffix == ".json" or data.startswith(b"{")


def check_unicode(text: str) -> None:
    """Raises ValueError, with the position, if `text` holds a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The text holds the lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}; that is not Unicode text and has no UTF-8 form. Replace or remove it."
        ) from None
