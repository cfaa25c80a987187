"""One split of a prepared data set as rows of tokens, by random access.

With the documents of a split joined into one stream, row i holds tokens [i T, i T + T) and, as
labels, the tokens one position later. Every token of the stream is a target exactly once, except
the first one of each document (its BOS), which would have to be predicted from the document before
it: an EOS is a target, and it is not used to predict the next document. Borders come from the
stored document starts, never from token values, so text or padding that looks like EOS changes
nothing.

Axes: T tokens of a row.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from data.index import Index, Split, read_index
from data.starts import DocumentStarts
from data.stream import TokenStream

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
        dtype = np.dtype(self.index.dtype).newbyteorder("<")
        shards, vocab_size = self._split.shards, self.index.vocab_size
        self._stream = TokenStream(self.folder, shards, dtype, vocab_size)
        path = self.folder / self._split.offsets_file
        self._starts = DocumentStarts(path, self._split.tokens)
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
        row = {n: np.empty(self.seq_len, np.int64) for n in ("tokens", "labels", "segments")}
        self.fill(i, row)
        return {name: torch.from_numpy(values) for name, values in row.items()}

    def fill(self, i: int, row: Mapping[str, np.ndarray]) -> None:
        """Writes row i into these arrays, see `__getitem__`."""
        tokens, labels, segments = (row[name] for name in ("tokens", "labels", "segments"))
        begin, end = self._span(i)
        count = end - begin
        stream = self._stream.read(begin, min(end + 1, self._split.tokens))
        starts = self._starts.inside(begin, end + 1) - begin
        tokens[:count] = stream[:count]
        tokens[count:] = self.index.pad_id
        labels[: len(stream) - 1] = stream[1:]
        labels[len(stream) - 1 :] = IGNORED
        labels[starts[starts > 0] - 1] = IGNORED
        segments[:] = 0
        segments[starts[(starts > 0) & (starts < self.seq_len)]] = 1
        if count < self.seq_len:
            segments[count] = 1
        np.cumsum(segments, out=segments)

    def targets(self, i: int) -> int:
        """Number of labels of row i that are not IGNORED."""
        begin, end = self._span(i)
        labels = min(end + 1, self._split.tokens) - begin - 1
        return labels - len(np.unique(self._starts.inside(begin + 1, end + 1)))

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

    def starts(self) -> np.ndarray:
        """Where each document starts in the stream: int64, memory-mapped to be read in order."""
        return self._starts.mapped()

    def _span(self, i: int) -> tuple[int, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"Row {i} is outside [0, {len(self)}).")
        begin = int(i) * self.seq_len
        return begin, min(begin + self.seq_len, self._split.tokens)
