"""Windows of a split by the length of the document that they show, by random access.

A window counts as showing the document that holds its middle token. A document much longer than
a window fills all but two of its own; short documents share a window, and the one in the middle
stands for them. Bucket b holds the windows whose document has at least bounds[b - 1] and less than
bounds[b] tokens, BOS and EOS included.

There is one byte per window, its bucket, in a file (`data.length_file`) or in memory. The counts of
every `BLOCK` windows are kept in memory: the k-th window of a bucket is found by bisecting them and
looking through one block.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

BLOCK = 4096


class LengthBuckets:
    """Which windows of a stream lie in which bucket of document lengths.

    block: the buckets of windows [n BLOCK, (n + 1) BLOCK), uint8, by n.
    counts: int64 [blocks, buckets], windows of every block in every bucket.
    """

    def __init__(self, block: Callable[[int], np.ndarray], counts: np.ndarray) -> None:
        self._block = block
        self._before = np.zeros((counts.shape[1], len(counts) + 1), dtype=np.int64)
        np.cumsum(counts.T, axis=1, out=self._before[:, 1:])

    @property
    def sizes(self) -> list[int]:
        """Number of windows in each bucket."""
        return self._before[:, -1].tolist()

    def window(self, bucket: int, number: int) -> int:
        """The window with this number, in order of the stream, among those of a bucket.

        Raises:
            ValueError: what is stored changed since it was opened.
        """
        before = self._before[bucket]
        block = int(np.searchsorted(before, number, side="right")) - 1
        windows = np.flatnonzero(self._block(block) == bucket)
        if len(windows) != before[block + 1] - before[block]:
            raise ValueError(
                "the buckets of data.by_length changed on disk while they were in use; start again"
            )
        return block * BLOCK + int(windows[number - int(before[block])])


def bucket_codes(
    blocks: Iterable[np.ndarray], tokens: int, length: int, windows: int, bounds: Sequence[int]
) -> Iterator[np.ndarray]:
    """The bucket of every window, in order, uint8, some at a time.

    blocks: of starts, as `data.starts.DocumentStarts.blocks` gives them.
    tokens: of the stream.  length: tokens of a window.  windows: how many there are.
    bounds: increasing, at most 255.
    """
    for starts in blocks:
        # The first window whose middle token is in the document or after it.
        first = (starts + (length - 1 - length // 2)) // length
        if first[-1] >= windows or starts[-1] >= tokens:
            # The middle of the last window may be beyond the stream: that window shows the last
            # document that has a token.
            first[(first > windows) | (starts >= tokens)] = windows
        shown = np.flatnonzero(first[1:] != first[:-1])
        counts = first[shown + 1] - first[shown]
        sizes = starts[shown + 1] - starts[shown]
        codes = np.zeros(len(shown), np.uint8)
        for bound in bounds:
            codes += sizes >= bound
        yield np.repeat(codes, counts)


def block_counts(codes: np.ndarray, buckets: int) -> np.ndarray:
    """int64 [blocks, buckets] of codes that begin with a block; the last may be shorter."""
    whole = len(codes) // BLOCK * BLOCK
    parts = [codes[:whole].reshape(-1, BLOCK), codes[whole:].reshape(1, -1)]
    counted = [
        np.stack([np.count_nonzero(part == b, axis=1) for b in range(buckets)], axis=1)
        for part in parts
        if part.size
    ]
    return np.concatenate(counted)


def names(bounds: Sequence[int]) -> Iterator[str]:
    """What each bucket holds, in words such as `below 4,096` and `4,096 to 32,767`."""
    yield f"below {bounds[0]:,}"
    for low, high in pairwise(bounds):
        yield f"{low:,} to {high - 1:,}"
    yield f"{bounds[-1]:,} and more"
