"""Windows of a split by the length of the document that they show, by random access.

A window counts as showing the document that holds its middle token. A document much longer than
a window fills all but two of its own; short documents share a window, and the one in the middle
stands for them. Bucket b holds the windows whose document has at least bounds[b - 1] and less than
bounds[b] tokens, BOS and EOS included.

One byte per window is kept, and the counts of every `BLOCK` windows: the k-th window of a bucket is
found by bisecting the counts and looking through one block. For 100 billion tokens in windows of
4,096 that is 24 MB. It is computed when the split is opened, from the starts of the documents.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

BLOCK = 4096
_CHUNK = 1 << 18  # documents that are looked at at a time


class LengthBuckets:
    """Which windows of a stream lie in which bucket of document lengths.

    starts: int64 [documents], where each document starts in the stream; may be memory-mapped. It is
    not kept.
    tokens: length of the stream.  length: tokens of a window.  windows: how many there are.
    bounds: increasing.
    """

    def __init__(
        self, starts: np.ndarray, tokens: int, length: int, windows: int, bounds: Sequence[int]
    ) -> None:
        self._codes = np.empty(windows, dtype=np.uint8)
        edges = np.asarray(bounds, dtype=np.int64)
        done = 0
        for document in range(0, len(starts), _CHUNK):
            # A copy: the documents are read once, in order.
            own = np.array(starts[document : document + _CHUNK + 1])
            if document + _CHUNK >= len(starts):
                own = np.append(own, tokens)
            # The windows whose middle token is in these documents.
            until = windows if own[-1] == tokens else -(-(int(own[-1]) - length // 2) // length)
            some = np.arange(done, min(max(until, done), windows), dtype=np.int64)
            middle = np.minimum(some * length + length // 2, tokens - 1)
            sizes = np.diff(own)[np.searchsorted(own, middle, side="right") - 1]
            self._codes[done : done + len(some)] = np.searchsorted(edges, sizes, side="right")
            done += len(some)
        assert done == windows
        self._before = _counts_before(self._codes, len(edges) + 1)

    @property
    def sizes(self) -> list[int]:
        """Number of windows in each bucket."""
        return self._before[:, -1].tolist()

    def window(self, bucket: int, number: int) -> int:
        """The window with this number, in order of the stream, among those of a bucket."""
        counts = self._before[bucket]
        block = int(np.searchsorted(counts, number, side="right")) - 1
        codes = self._codes[block * BLOCK : (block + 1) * BLOCK]
        return block * BLOCK + int(np.flatnonzero(codes == bucket)[number - int(counts[block])])


def names(bounds: Sequence[int]) -> Iterator[str]:
    """What each bucket holds, in words such as `below 4,096` and `4,096 to 32,767`."""
    yield f"below {bounds[0]:,}"
    for low, high in pairwise(bounds):
        yield f"{low:,} to {high - 1:,}"
    yield f"{bounds[-1]:,} and more"


def _counts_before(codes: np.ndarray, buckets: int) -> np.ndarray:
    """int64 [buckets, blocks + 1]: windows of each bucket before each block, and in all."""
    blocks = -(-len(codes) // BLOCK)
    result = np.zeros((buckets, blocks + 1), dtype=np.int64)
    for block in range(blocks):
        some = codes[block * BLOCK : (block + 1) * BLOCK]
        result[:, block + 1] = result[:, block] + np.bincount(some, minlength=buckets)
    return result
