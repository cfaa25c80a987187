"""The index of a prepared data set: what index.json holds, and the checks made before it is used.

A prepared folder holds

    index.json                    this file's `Index`; written last
    tokenizer.model               the tokenizer; or tokenizer.json and special_tokens_map.json
    train-00000.bin ...           token ids, raw little-endian uint16 or uint32: one stream, cut
    train-documents.npy           int64 [documents]: where each document starts in the stream
    validation-00000.bin ...      the same for the validation split
    validation-documents.npy
    documents.png                 histogram of the lengths of the documents

Shards are named train-00003-00000.bin where part 3 of the source was prepared by a task of its own.
A document in the stream is BOS, its tokens, EOS. `Index.fingerprint` identifies the contents: it
does not depend on where or when the data set was prepared.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from data.tokenizer import FILES

FORMAT_VERSION = 1
INDEX_FILE = "index.json"
HISTOGRAM_FILE = "documents.png"

Split = Literal["train", "validation"]


class Shard(BaseModel):
    """One file of token ids."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    tokens: int
    sha256: str


class SplitIndex(BaseModel):
    """One split: its counts and files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: int = Field(description="Length of the stream, BOS and EOS of every document included.")
    documents: int
    bytes: int = Field(description="Bytes of text (UTF-8).")
    shards: list[Shard]
    offsets_file: str
    offsets_sha256: str

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if sum(shard.tokens for shard in self.shards) != self.tokens:
            raise ValueError("the tokens of the shards do not add up to the tokens of the split")
        return self


class ValidationIndex(SplitIndex):
    """The validation split, with the results of two simple compressors to compare a model with."""

    gzip_bytes: int = Field(description="Sum over documents of their size after gzip -9.")
    unigram_nats_per_token: float = Field(
        description="Entropy of the targets' own distribution; targets are all tokens but BOS."
    )


class Rejected(BaseModel):
    """Documents that were left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    counts: dict[str, int] = Field(description="Number of documents by reason.")
    examples: dict[str, list[str]] = Field(description="The first names of each reason.")


class Duplicates(BaseModel):
    """Documents whose text is that of an earlier one, byte for byte."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    documents: int
    bytes: int
    dropped: bool = Field(description="Whether they were left out (data.drop_duplicates).")
    examples: list[str] = Field(description="The first of them, each with the document it repeats.")


class LongDocument(BaseModel):
    """A document and its size, for the summary."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    bytes: int


class Index(BaseModel):
    """Contents of index.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1]
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    bos_id: int
    eos_id: int
    pad_id: int
    tokenizer_kind: Literal["sentencepiece", "hf_json"] = "sentencepiece"
    tokenizer_fingerprint: str
    fingerprint: str
    source: dict[str, Any] = Field(description="What was read; see `data.sources`.")
    notes: list[str] = Field(description="What the preparation decided and printed.")
    rejected: Rejected
    longest: list[LongDocument]
    duplicates: Duplicates | None = Field(
        default=None, description="None in data sets of versions that did not look for them."
    )
    train: SplitIndex
    validation: ValidationIndex

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.dtype != token_dtype(self.vocab_size).name:
            raise ValueError(
                f"dtype {self.dtype} does not fit a vocabulary of {self.vocab_size} ids, "
                f"which needs {token_dtype(self.vocab_size)}"
            )
        expected = contents_fingerprint(self.tokenizer_fingerprint, self.train, self.validation)
        if self.fingerprint != expected:
            raise ValueError(
                f"fingerprint {self.fingerprint} is not that of the contents, {expected}"
            )
        return self

    @property
    def tokenizer_file(self) -> str:
        """Name of the file in the folder to load the tokenizer from."""
        return FILES[self.tokenizer_kind][0]

    def split(self, name: Split) -> SplitIndex:
        """The part of one split."""
        return self.train if name == "train" else self.validation


def token_dtype(vocab_size: int) -> np.dtype:
    """Type of stored ids: uint16 up to 65536 ids, uint32 beyond."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def contents_fingerprint(tokenizer: str, *splits: SplitIndex) -> str:
    """sha256 (first 16 hex digits) over the tokenizer's fingerprint and all file checksums."""
    parts = [tokenizer]
    for split in splits:
        parts += [shard.sha256 for shard in split.shards] + [split.offsets_sha256]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def files_of(index: Index) -> set[str]:
    """Names of all files of a prepared folder. (Older ones have no histogram.)"""
    names = {INDEX_FILE, *FILES[index.tokenizer_kind], HISTOGRAM_FILE}
    for split in (index.train, index.validation):
        names |= {split.offsets_file, *(shard.file for shard in split.shards)}
    return names


def read_index(folder: str | Path) -> Index:
    """Reads index.json and checks it against the sizes of the files and the tokenizer.

    Reads no tokens (see `verify_checksums`). Raises ValueError naming the file that does not agree.
    """
    folder = Path(folder)
    path = folder / INDEX_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} is not a prepared data set: it has no {INDEX_FILE}. "
            "Prepare one: python -m data.prepare data.files='FOLDER/*.txt'"
        )
    try:
        raw = json.loads(path.read_bytes())
        if isinstance(raw, dict) and raw.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"format version {raw.get('format_version')} is not the version {FORMAT_VERSION} "
                "that this code reads"
            )
        index = Index.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        problem = first["msg"].removeprefix("Value error, ")
        raise _damaged(path, f"{where + ': ' if where else ''}{problem}") from None
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    item = np.dtype(index.dtype).itemsize
    for split in (index.train, index.validation):
        for shard in split.shards:
            _check_size(
                folder / shard.file, shard.tokens * item, f"{shard.tokens} {index.dtype} tokens"
            )
        _check_offsets(folder / split.offsets_file, split.documents)
    files = [folder / name for name in FILES[index.tokenizer_kind]]
    tokenizer = b"".join(path.read_bytes() for path in files if path.is_file())
    if hashlib.sha256(tokenizer).hexdigest()[:16] != index.tokenizer_fingerprint:
        problem = "missing or not the tokenizer the data set was prepared with"
        raise _damaged(
            next((path for path in files if not path.is_file()), files[0]), f"it is {problem}"
        )
    return index


def verify_checksums(
    folder: str | Path, index: Index, read: Callable[[int], object] = lambda size: None
) -> None:
    """Reads every file and raises ValueError, naming the file, if one changed since it was
    written. Calls `read` with the size of each file that is done."""
    for split in (index.train, index.validation):
        files = {shard.file: shard.sha256 for shard in split.shards}
        for file, sha256 in (files | {split.offsets_file: split.offsets_sha256}).items():
            path = Path(folder) / file
            if not path.is_file():
                raise _damaged(path, "it is missing")
            if file_sha256(path) != sha256:
                raise _damaged(path, "its contents changed: the checksum differs")
            read(path.stat().st_size)


def _check_size(path: Path, expected: int, what: str) -> None:
    if not path.is_file():
        raise _damaged(path, "it is missing")
    if (size := path.stat().st_size) != expected:
        raise _damaged(path, f"it has {size} bytes, but {what} take {expected}")


def _check_offsets(path: Path, documents: int) -> None:
    if not path.is_file():
        raise _damaged(path, "it is missing")
    try:
        offsets = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # ValueError, EOFError, those of the parser: whatever the bytes are
        raise _damaged(path, str(error)) from None
    if offsets.dtype != np.int64 or offsets.shape != (documents,):
        raise _damaged(path, f"it holds {offsets.dtype} {offsets.shape}, not int64 ({documents},)")


def _damaged(path: Path, problem: str) -> ValueError:
    return ValueError(
        f"{path}: {problem}. The data set is damaged or was not prepared by this code; delete its "
        "folder and prepare it again."
    )


def file_sha256(path: Path) -> str:
    """sha256 of a file's contents in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
