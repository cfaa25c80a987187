"""Which documents start inside a stretch of a stream, from the file of all starts, by `pread`.

Starts rise nearly evenly, so the place of a token is guessed by proportion and the guess mended
from what is read there (interpolation search, with a bisection every third time as a bound): a few
reads of 4 kB in a file of any size. Of what was read, one start is remembered here and there: after
some thousand look-ups the first guess is nearly always right.
"""

import bisect
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 512  # starts per read
_MOST_KNOWN = 1 << 13  # starts that are remembered, about 0.6 MB
_WAY_OUT = "The data set is damaged; delete its folder and prepare it again."


class DocumentStarts:
    """The file `path`: int64 [documents] in NumPy's format, of a stream of `tokens` tokens.

    It is opened on first use in each process.
    """

    def __init__(self, path: Path, tokens: int) -> None:
        self._path = path
        self._tokens = tokens
        self._file: FileIO | None = None
        # Rising starts of documents, and their numbers.
        self._known: list[int] = []
        self._known_numbers: list[int] = []

    @property
    def count(self) -> int:
        """How many documents there are."""
        self._open()
        return self._count

    def blocks(self, documents: int) -> Iterator[np.ndarray]:
        """All starts in order, so many at a time, each time in the same array.

        Every block begins with the last start of the one before; the last ends with the length of
        the stream.

        Raises:
            ValueError: they do not rise from 0 to at most the length of the stream.
        """
        self._open()
        block = np.empty(documents + 1, np.int64)
        first = 0
        while first < self._count:
            count = min(documents, self._count - first)
            more = min(count + 1, self._count - first)
            if os.preadv(self._fd, [block[:more]], self._offset + 8 * first) < 8 * more:
                raise self._ends_early()
            if more == count:
                block[count] = self._tokens
            own = block[: count + 1]
            if (wrong := np.flatnonzero(own[1:] < own[:-1])).size:
                raise self._damaged(own[wrong[0] : wrong[0] + 2].tolist())
            yield own
            first += count

    def inside(self, begin: int, end: int) -> np.ndarray:
        """The starts in [begin, end), int64: if the file is undamaged, which `check` says."""
        self._open()
        at, block = self._first_from(begin)
        found = []
        while len(block):
            count = int(block.searchsorted(end))
            found.append(block[:count])
            if count < len(block):
                break
            at += len(block)
            block = self._read(at, at + _BLOCK)
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def check(self, begin: int, end: int) -> None:
        """Checks what `inside` gives.

        Raises:
            ValueError: it does not rise from `begin` on to less than `end`.
        """
        starts = self.inside(begin, end)
        if (np.diff(starts, prepend=begin, append=end - 1) < 0).any():
            raise self._damaged(starts[:5].tolist())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def _open(self) -> None:
        if self._file is not None:
            return
        starts = np.load(self._path, mmap_mode="r")
        if starts[0] != 0 or starts[-1] > self._tokens:
            raise self._damaged([int(starts[0]), int(starts[-1])])
        self._count, self._offset = len(starts), starts.offset
        self._file = FileIO(self._path)
        self._fd = self._file.fileno()

    def _first_from(self, position: int) -> tuple[int, np.ndarray]:
        """Number of the first document that starts at `position` or later, and what was read of the
        starts from it on, which is nothing only if there is none."""
        low, high = 0, self._count  # the answer is in [low, high]
        low_value, high_value = 0, self._tokens
        after = bisect.bisect_left(self._known, position)
        if after:
            low, low_value = self._known_numbers[after - 1], self._known[after - 1]
        if after < len(self._known):
            high, high_value = self._known_numbers[after], self._known[after]
        between = high - low
        turn = 0
        while low < high:
            turn += 1
            share = (position - low_value) / max(1, high_value - low_value)
            guess = (low + high) // 2 if turn % 3 == 0 else low + int(share * (high - low))
            first = min(max(low, guess - _BLOCK // 2), high - 1)
            block = self._read(first, first + _BLOCK)
            if between > 2 * _BLOCK and len(self._known) < _MOST_KNOWN:
                self._remember(first, int(block[0]))
                between = 0  # one of a look-up
            below = int(block.searchsorted(position))
            if below == 0:
                high, high_value = first, int(block[0])
            elif below == len(block):
                low, low_value = first + below, int(block[-1])
            else:
                return first + below, block[below:]
        return low, self._read(low, low + _BLOCK)

    def _remember(self, number: int, start: int) -> None:
        at = bisect.bisect_left(self._known, start)
        self._known.insert(at, start)
        self._known_numbers.insert(at, number)

    def _read(self, first: int, last: int) -> np.ndarray:
        count = min(last, self._count) - first
        found = os.pread(self._fd, 8 * count, self._offset + 8 * first)
        if len(found) < 8 * count:
            raise self._ends_early()
        return np.frombuffer(found, np.int64)

    def _ends_early(self) -> ValueError:
        return ValueError(f"{self._path}: it ends before its last start. {_WAY_OUT}")

    def _damaged(self, found: list[int]) -> ValueError:
        return ValueError(
            f"{self._path}: the starts of documents (among them {found}) do not rise from 0 to at "
            f"most {self._tokens}. {_WAY_OUT}"
        )
