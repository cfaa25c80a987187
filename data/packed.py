"""One split of a prepared data set as rows of tokens, by random access.

With the documents of a split joined into one stream, row i holds tokens [i T, i T + T) and, as
labels, the tokens one position later. Every token of the stream is a target exactly once, except
the first one of each document (its BOS), which would have to be predicted from the document before
it: an EOS is a target, and it is not used to predict the next document. Borders come from the
stored document starts, never from token values, so text or padding that looks like EOS changes
nothing.

Axes: R rows, T tokens of a row.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from data.index import Index, Split, read_index
from data.length_file import open_buckets
from data.lengths import LengthBuckets
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
        self.stream = TokenStream(self.folder, shards, dtype, vocab_size)
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
        row = {n: np.empty((1, self.seq_len), np.int64) for n in ("tokens", "labels", "segments")}
        fill([(self, i)], row)
        return {name: torch.from_numpy(values[0]) for name, values in row.items()}

    def targets(self, i: int) -> int:
        """Number of labels of row i that are not IGNORED."""
        begin, end = self.span(i)
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

    def length_buckets(self, windows: int, bounds: Sequence[int]) -> LengthBuckets:
        """The first rows by the length of the document that they show; see `data.length_file`.

        windows: how many rows.  bounds: of the lengths of a bucket, increasing.
        """
        fingerprint, tokens = self.index.fingerprint, self._split.tokens
        return open_buckets(
            self.folder, fingerprint, self._starts, tokens, self.seq_len, windows, bounds
        )

    def span(self, i: int) -> tuple[int, int]:
        """Where row i begins and ends in the stream."""
        if not 0 <= i < len(self):
            raise IndexError(f"Row {i} is outside [0, {len(self)}).")
        begin = int(i) * self.seq_len
        return begin, min(begin + self.seq_len, self._split.tokens)

    def read(self, i: int, ids: np.ndarray) -> tuple[int, np.ndarray]:
        """Reads row i and the token after it, if there is one, into `ids`, [T + 1].

        Returns how many tokens these are, and at which of them documents start, but for the first.
        Neither ids nor starts are checked: see `check`.
        """
        assert ids.dtype == self.stream.dtype, (ids.dtype, self.stream.dtype)
        begin, end = self.span(i)
        count = min(end + 1, self._split.tokens) - begin
        self.stream.read(begin, ids[:count])
        return count, self._starts.inside(begin + 1, end + 1) - begin

    def check(self, i: int, ids: np.ndarray) -> None:
        """Checks what `read` gave.

        Raises:
            ValueError: there are ids outside of the vocabulary, or the starts do not rise.
        """
        begin, end = self.span(i)
        self.stream.check(begin, ids)
        self._starts.check(begin + 1, end + 1)


def fill(rows: Sequence[tuple[PackedSplit, int]], batch: Mapping[str, np.ndarray]) -> None:
    """Writes these rows of splits, all equally long, into `batch`, see `PackedSplit.__getitem__`.

    batch: `tokens`, `labels`, `segments`, int64 [R, T], contiguous.

    What can be done for all rows at once is: a row by itself is so short that calls would cost more
    than the work.
    """
    tokens, labels, segments = (batch[name] for name in ("tokens", "labels", "segments"))
    number, length = tokens.shape
    stream = rows[0][0].stream
    ids = np.zeros((number, length + 1), stream.dtype)
    counts, starts = [], []
    for r, (split, i) in enumerate(rows):
        count, inside = split.read(i, ids[r])
        counts.append(count)
        starts.append(inside + r * length)
    borders = np.concatenate(starts)
    own = np.repeat(np.arange(number), [len(inside) for inside in starts])
    if (
        int(ids.max()) >= min(split.stream.vocab_size for split, _ in rows)
        or not np.array_equal((borders - 1) // length, own)
        or (borders[1:] < borders[:-1]).any()
    ):
        for r, (split, i) in enumerate(rows):
            split.check(i, ids[r, : counts[r]])
    tokens[:] = ids[:, :-1]
    labels[:] = ids[:, 1:]
    segments[:] = 0
    labels.reshape(-1)[borders - 1] = IGNORED
    # A document that starts with the next row is no border of this one.
    segments.reshape(-1)[borders[borders % length > 0]] = 1
    for r, count in enumerate(counts):
        if count <= length:  # the end of the stream
            tokens[r, count:] = rows[r][0].index.pad_id
            labels[r, count - 1 :] = IGNORED
            segments[r, count : count + 1] = 1
    np.cumsum(segments, axis=1, out=segments)
