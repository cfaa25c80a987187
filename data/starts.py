"""Which documents start inside a stretch of a stream, from the file of all starts, by `pread`.

Starts rise nearly evenly, so the place of a token is guessed by proportion and the guess mended
from what is read there (interpolation search, with a bisection every third time as a bound): a few
reads of 4 kB in a file of any size, none of which stays in memory.
"""

import os
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 512  # starts per read


class DocumentStarts:
    """The file `path`: int64 [documents] in NumPy's format, of a stream of `tokens` tokens.

    It is opened on first use in each process.
    """

    def __init__(self, path: Path, tokens: int) -> None:
        self._path = path
        self._tokens = tokens
        self._file: FileIO | None = None

    def mapped(self) -> np.ndarray:
        """All starts, memory-mapped, to be read in order.

        Raises:
            ValueError: they do not begin at 0 or go beyond the stream.
        """
        starts = np.load(self._path, mmap_mode="r")
        if starts[0] != 0 or starts[-1] > self._tokens:
            raise self._damaged([int(starts[0]), int(starts[-1])])
        return starts

    def inside(self, begin: int, end: int) -> np.ndarray:
        """The starts in [begin, end), int64.

        Raises:
            ValueError: those that were read do not rise.
        """
        if self._file is None:
            starts = self.mapped()
            self._count, self._offset = len(starts), starts.offset
            self._file = FileIO(self._path)
        at = self._number_below(begin)
        found = []
        while at < self._count:
            block = self._read(at, at + _BLOCK)
            inside = block[block < end]
            found.append(inside)
            if len(inside) < len(block):
                break
            at += len(block)
        starts = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        if len(starts) and (starts[0] < begin or (np.diff(starts) < 0).any()):
            raise self._damaged(starts[:5].tolist())
        return starts

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def _number_below(self, position: int) -> int:
        """How many documents start before `position`."""
        low, high = 0, self._count  # the answer is in [low, high]
        low_value, high_value = 0, self._tokens
        turn = 0
        while low < high:
            turn += 1
            share = (position - low_value) / max(1, high_value - low_value)
            guess = (low + high) // 2 if turn % 3 == 0 else low + int(share * (high - low))
            first = min(max(low, guess - _BLOCK // 2), high - 1)
            block = self._read(first, min(first + _BLOCK, high))
            below = int(np.searchsorted(block, position))
            if below == 0:
                high, high_value = first, int(block[0])
            elif below == len(block):
                low, low_value = first + below, int(block[-1])
            else:
                return first + below
        return low

    def _read(self, first: int, last: int) -> np.ndarray:
        count = min(last, self._count) - first
        found = os.pread(self._file.fileno(), 8 * count, self._offset + 8 * first)
        return np.frombuffer(found, np.int64)

    def _damaged(self, found: list[int]) -> ValueError:
        return ValueError(
            f"{self._path}: the starts of documents (among them {found}) do not rise from 0 to at "
            f"most {self._tokens}. The data set is damaged; delete its folder and prepare it again."
        )
