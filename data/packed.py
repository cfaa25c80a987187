"""One split of a prepared data set as rows of tokens, by random access.

With the documents of a split joined into one stream, row i holds tokens [i T, i T + T) and, as
labels, the tokens one position later. Every token of the stream is a target exactly once, except
the first one of each document (its BOS), which would have to be predicted from the document before
it: an EOS is a target, and it is not used to predict the next document. Borders come from the
stored document starts, never from token values, so text or padding that looks like EOS changes
nothing.

Axes: T tokens of a row.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.index import Index, Split, read_index

IGNORED = -100
"""Label of positions that are not predicted, as in torch.nn.functional.cross_entropy."""


class PackedSplit:
    """Rows of `seq_len` tokens of one split: a map-style data set.

    index: of the folder, where it was read and checked before; None: it is read.
    len: ceil((tokens - 1) / seq_len). Files are opened on first use in each process.
    Raises ValueError if the folder is damaged or holds no row (fewer than two tokens).
    """

    def __init__(
        self, folder: str | Path, split: Split, seq_len: int, index: Index | None = None
    ) -> None:
        self.folder = Path(folder)
        self.seq_len = seq_len
        self.index = index or read_index(folder)
        self._split = self.index.split(split)
        self._ends = np.cumsum([shard.tokens for shard in self._split.shards], dtype=np.int64)
        self._shards: dict[int, np.ndarray] = {}
        self._starts: np.ndarray | None = None
        if self._split.tokens < 2:
            raise ValueError(
                f"{folder}: the {split} split has {self._split.tokens} tokens; no row."
            )

    def __len__(self) -> int:
        return -(-(self._split.tokens - 1) // self.seq_len)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        """Row i: `tokens`, `labels`, `segments`, each int64 [T].

        Labels are IGNORED (-100) before the first token of a document and in padding. Segments
        number the documents of the row from 0. Padding, only at the end of the last row, holds pad
        ids and is a segment of its own.
        """
        begin, end = self._span(i)
        count = end - begin
        stream = self._read(begin, min(end + 1, self._split.tokens))
        starts = self._document_starts(begin, end + 1) - begin
        tokens = np.full(self.seq_len, self.index.pad_id, dtype=np.int64)
        labels = np.full(self.seq_len, IGNORED, dtype=np.int64)
        tokens[:count] = stream[:count]
        labels[: len(stream) - 1] = stream[1:]
        labels[starts[starts > 0] - 1] = IGNORED
        opens = np.zeros(self.seq_len, dtype=np.int64)
        opens[starts[(starts > 0) & (starts < self.seq_len)]] = 1
        if count < self.seq_len:
            opens[count] = 1
        rows = {"tokens": tokens, "labels": labels, "segments": np.cumsum(opens)}
        return {name: torch.from_numpy(row) for name, row in rows.items()}

    def targets(self, i: int) -> int:
        """Number of labels of row i that are not IGNORED."""
        begin, end = self._span(i)
        labels = min(end + 1, self._split.tokens) - begin - 1
        return labels - len(self._document_starts(begin + 1, end + 1))

    def empty_row(self) -> dict[str, torch.Tensor]:
        """A row of padding only: no targets."""
        return {
            "tokens": torch.full((self.seq_len,), self.index.pad_id),
            "labels": torch.full((self.seq_len,), IGNORED),
            "segments": torch.zeros(self.seq_len, dtype=torch.int64),
        }

    @property
    def stream_tokens(self) -> int:
        """Length of the stream."""
        return self._split.tokens

    @property
    def starts(self) -> np.ndarray:
        """Where each document starts in the stream: int64, memory-mapped."""
        if self._starts is None:
            self._starts = np.load(self.folder / self._split.offsets_file, mmap_mode="r")
        return self._starts

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shards": {}, "_starts": None}

    def _span(self, i: int) -> tuple[int, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"Row {i} is outside [0, {len(self)}).")
        begin = int(i) * self.seq_len
        return begin, min(begin + self.seq_len, self._split.tokens)

    def _read(self, begin: int, end: int) -> np.ndarray:
        """Tokens [begin, end) of the stream as int64."""
        parts = []
        for number in range(
            int(np.searchsorted(self._ends, begin, side="right")), len(self._split.shards)
        ):
            first = int(self._ends[number]) - self._split.shards[number].tokens
            if first >= end:
                break
            part = self._shard(number)[max(begin - first, 0) : end - first]
            parts.append(part.astype(np.int64))
        return np.concatenate(parts)

    def _shard(self, number: int) -> np.ndarray:
        """Opened when it is first read: a large data set has thousands of them."""
        if number not in self._shards:
            dtype = np.dtype(self.index.dtype).newbyteorder("<")
            file = self.folder / self._split.shards[number].file
            self._shards[number] = np.memmap(file, dtype, mode="r")
        return self._shards[number]

    def _document_starts(self, begin: int, end: int) -> np.ndarray:
        """Starts of documents at positions [begin, end) of the stream, int64."""
        low, high = np.searchsorted(self.starts, [begin, end])
        return np.asarray(self.starts[low:high])
