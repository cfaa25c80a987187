"""Documents that repeat an earlier one byte for byte, by 16 bytes of the sha256 of their text.

Two different texts with equal hashes are not to be expected: among 10^12 documents the probability
is below 10^-14. Near-duplicates (the same page with another date) are another matter, and left to
tools made for them, such as datatrove's MinHash deduplication, before the text comes here.
"""

import numpy as np


def repeated(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The documents whose hash an earlier one has, ascending, and the first document that has it.

    hashes: uint64 [documents, 2].  Returns two int64 arrays of equal length.
    """
    # Sorted by hash; lexsort is stable, so that equal hashes keep the order of the documents.
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    same = np.zeros(len(order), dtype=bool)
    same[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
    group_starts = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    again, first = order[same], order[group_starts[same]]
    place = np.argsort(again)
    return again[place], first[place]
