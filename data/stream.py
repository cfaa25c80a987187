"""Tokens of a split by their place in the stream, from the files that it is cut into.

Rows are read at random places, with `pread`. A memory map would do as well where the system is told
not to read ahead; by default every touched page brings its neighbours with it, and rows of a large
data set then cost hundreds of times what they hold (measured: 12 ms of CPU time a row of 8 kB).
"""

import bisect
import os
from collections import OrderedDict
from collections.abc import Sequence
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from data.index import Shard

MOST_OPEN = 128
"""Files kept open at a time: processes may have 1,024, and several splits are read at once."""


class TokenStream:
    """The stream that `shards` in `folder` hold. Files are opened on first use in each process.

    dtype: of the stored ids, which are below `vocab_size`.
    """

    def __init__(
        self, folder: Path, shards: Sequence[Shard], dtype: np.dtype, vocab_size: int
    ) -> None:
        self._folder = folder
        self._shards = shards
        self._ends = list(accumulate(shard.tokens for shard in shards))
        self._dtype = dtype
        self._vocab_size = vocab_size
        self._open: OrderedDict[int, FileIO] = OrderedDict()

    def read(self, begin: int, end: int) -> np.ndarray:
        """Tokens [begin, end) as they are stored.

        Raises:
            ValueError: a file ends too early or holds an id outside of the vocabulary.
        """
        parts = []
        number = bisect.bisect_right(self._ends, begin)
        while begin < end:
            first = self._ends[number] - self._shards[number].tokens
            stop = min(end, self._ends[number])
            parts.append(self._part(number, begin - first, stop - begin))
            begin, number = stop, number + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": OrderedDict()}

    def _part(self, number: int, first: int, count: int) -> np.ndarray:
        size = self._dtype.itemsize
        found = os.pread(self._file(number).fileno(), count * size, first * size)
        if len(found) < count * size:
            raise self._damaged(number, f"it ends before token {first + count:,} of its tokens")
        ids = np.frombuffer(found, self._dtype)
        if (highest := int(ids.max())) >= self._vocab_size:
            raise self._damaged(
                number, f"it holds id {highest:,}, and the vocabulary has {self._vocab_size:,}"
            )
        return ids

    def _file(self, number: int) -> FileIO:
        if number not in self._open:
            if len(self._open) == MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[number] = FileIO(self._folder / self._shards[number].file)
        self._open.move_to_end(number)
        return self._open[number]

    def _damaged(self, number: int, problem: str) -> ValueError:
        return ValueError(
            f"{self._folder / self._shards[number].file}: {problem}. The data set is damaged; "
            "delete its folder and prepare it again."
        )
