"""Writes one split of a prepared data set: shards of token ids and the starts of the documents.

Every complete shard is recorded, with the starts of the documents in it. A writer that finds such a
record continues after the last complete shard: the document that was being written then has to be
added again, and the part of it that is on disk already is not written twice.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict

from data.folder import save_array, sync, write_atomically
from data.index import Shard, SplitIndex, file_sha256, token_dtype


class _Progress(BaseModel):
    """The complete shards of a split that is being written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shards: list[Shard]


class SplitWriter:
    """Appends documents to a stream that is cut into files of at most `shard_tokens` tokens.

    Use: `add` every document from number `documents` on, which is 0 unless an interrupted writer of
    the same split is continued; then `close` once.
    """

    def __init__(self, folder: Path, stem: str, vocab_size: int, shard_tokens: int) -> None:
        """stem: what the names of all files begin with, such as "train"."""
        self._folder = folder
        self._stem = stem
        self._vocab_size = vocab_size
        self._dtype = token_dtype(vocab_size)
        self._shard_tokens = shard_tokens
        self._shards: list[Shard] = []
        self._starts = array("q")
        self._tokens = 0
        self._on_disk = 0
        self._finished = 0
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._room = 0
        self._recorded = 0
        self._continue()

    @property
    def documents(self) -> int:
        """Number of documents added."""
        return len(self._starts)

    def add(self, ids: Sequence[int] | np.ndarray, *, starts_document: bool = True) -> None:
        """Appends tokens: a document with its BOS and EOS, or the next part of a long one.

        Raises ValueError on an id outside the vocabulary.
        """
        self.extend(np.asarray(ids, dtype=np.int64), [0] if starts_document else [])

    def extend(self, ids: np.ndarray, starts: Sequence[int] | np.ndarray) -> None:
        """Appends tokens of several documents, of which the first and last may be in part.

        ids: integers.  starts: positions in `ids` where documents start, ascending.
        Raises ValueError on an id outside the vocabulary.
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise ValueError(
                f"Token ids from {ids.min()} to {ids.max()} are outside the vocabulary of "
                f"{self._vocab_size} ids."
            )
        self._starts.extend(self._tokens + int(start) for start in starts)
        rest = ids[max(0, self._on_disk - self._tokens) :].astype(self._dtype)
        self._tokens += len(ids)
        while len(rest):
            if self._file is None:
                self._open_shard()
            part, rest = rest[: self._room], rest[self._room :]
            self._file.write(part.data)
            self._hash.update(part.data)
            self._room -= len(part)
            if self._room == 0:
                self._finish_shard()

    def close(self, text_bytes: int) -> SplitIndex:
        """Completes the last shard and writes the document starts; everything is on disk after.

        text_bytes: bytes of text behind the tokens. Returns the split's part of the index.
        """
        if self._file is not None:
            self._finish_shard()
        path = self._folder / f"{self._stem}-documents.npy"
        save_array(path, np.frombuffer(self._starts, dtype=np.int64))
        return SplitIndex(
            tokens=self._tokens,
            documents=len(self._starts),
            bytes=text_bytes,
            shards=self._shards,
            offsets_file=path.name,
            offsets_sha256=file_sha256(path),
        )

    def _open_shard(self) -> None:
        self._file = self._path("bin").open("wb")
        self._hash = hashlib.sha256()
        self._room = self._shard_tokens

    def _finish_shard(self) -> None:
        sync(self._file)
        self._file.close()
        self._file = None
        path = self._path("bin")
        tokens = self._shard_tokens - self._room
        self._finished += tokens
        end = bisect_left(self._starts, self._finished, lo=self._recorded)
        save_array(self._path("starts"), np.array(self._starts[self._recorded : end], np.int64))
        self._recorded = end
        self._shards.append(Shard(file=path.name, tokens=tokens, sha256=self._hash.hexdigest()))
        progress = _Progress(shards=self._shards)
        write_atomically(self._progress, progress.model_dump_json().encode())

    def _continue(self) -> None:
        """Takes up the record of an interrupted writer, if there is one."""
        if not self._progress.exists():
            return
        for shard in _Progress.model_validate_json(self._progress.read_bytes()).shards:
            self._starts.extend(np.load(self._path("starts")).tolist())
            self._shards.append(shard)
            self._on_disk += shard.tokens
        self._finished = self._on_disk
        self._recorded = len(self._starts)
        self._tokens = self._starts.pop()

    @property
    def _progress(self) -> Path:
        return self._folder / f"{self._stem}-progress.json"

    def _path(self, suffix: str) -> Path:
        """A file of the shard that comes next."""
        return self._folder / f"{self._stem}-{len(self._shards):05d}.{suffix}"
