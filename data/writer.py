"""Writes one split of a prepared data set: shards of token ids and the starts of the documents."""

import hashlib
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.index import Shard, Split, SplitIndex, token_dtype


class SplitWriter:
    """Appends documents to a stream that is cut into files of at most `shard_tokens` tokens.

    Use: `add` everything, then `close` once.
    """

    def __init__(self, folder: Path, split: Split, vocab_size: int, shard_tokens: int) -> None:
        self._shards: list[Shard] = []
        self._tokens = 0
        self._folder = folder
        self._split = split
        self._vocab_size = vocab_size
        self._dtype = token_dtype(vocab_size)
        self._shard_tokens = shard_tokens
        self._starts = array("q")
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._room = 0

    def add(self, ids: Sequence[int] | np.ndarray, *, starts_document: bool = True) -> None:
        """Appends tokens: a document with its BOS and EOS, or the next part of a long one.

        Raises ValueError on an id outside the vocabulary.
        """
        wide = np.asarray(ids, dtype=np.int64)
        if len(wide) and not 0 <= wide.min() <= wide.max() < self._vocab_size:
            raise ValueError(
                f"Token ids from {wide.min()} to {wide.max()} are outside the vocabulary of "
                f"{self._vocab_size} ids."
            )
        if starts_document:
            self._starts.append(self._tokens)
        self._tokens += len(wide)
        rest = wide.astype(self._dtype)
        while len(rest):
            if self._room == 0:
                self._next_shard()
            part, rest = rest[: self._room], rest[self._room :]
            self._file.write(part.tobytes())
            self._hash.update(part.tobytes())
            self._room -= len(part)

    def close(self, text_bytes: int) -> SplitIndex:
        """Completes the last shard and writes the document starts; everything is on disk after.

        text_bytes: bytes of text behind the tokens. Returns the split's part of the index.
        """
        self._finish_shard()
        path = self._folder / f"{self._split}-documents.npy"
        with path.open("wb") as file:
            np.save(file, np.frombuffer(self._starts, dtype=np.int64))
            sync(file)
        return SplitIndex(
            tokens=self._tokens,
            documents=len(self._starts),
            bytes=text_bytes,
            shards=self._shards,
            offsets_file=path.name,
            offsets_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )

    def _next_shard(self) -> None:
        self._finish_shard()
        path = self._folder / f"{self._split}-{len(self._shards):05d}.bin"
        self._file = path.open("wb")
        self._hash = hashlib.sha256()
        self._room = self._shard_tokens

    def _finish_shard(self) -> None:
        if self._file is None:
            return
        name = Path(self._file.name).name
        tokens = self._file.tell() // self._dtype.itemsize
        sync(self._file)
        self._file.close()
        self._file = None
        self._shards.append(Shard(file=name, tokens=tokens, sha256=self._hash.hexdigest()))


def sync(file: BinaryIO) -> None:
    """Forces a file's contents to disk."""
    file.flush()
    os.fsync(file.fileno())
