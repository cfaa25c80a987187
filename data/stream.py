"""Tokens of a split by their place in the stream, from the files that it is cut into.

Rows are read at random places, with `pread`. A memory map would do as well where the system is told
not to read ahead; by default every touched page brings its neighbours with it, and rows of a large
data set then cost hundreds of times what they hold (measured: 12 ms of CPU time a row of 8 kB).
"""

import bisect
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
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
        self.dtype = dtype
        self.vocab_size = vocab_size
        self._open: OrderedDict[int, FileIO] = OrderedDict()

    def read(self, begin: int, out: np.ndarray) -> None:
        """Reads the tokens from `begin` on into `out`, contiguous and of the stored type.

        Whether they are ids of the vocabulary is for `check`, which looks at many rows at a time.

        Raises:
            ValueError: a file ends too early.
        """
        done = 0
        for number, first, count in self._parts(begin, len(out)):
            part = out[done : done + count]
            size = part.itemsize
            if os.preadv(self._file(number).fileno(), [part], first * size) < count * size:
                raise self._damaged(number, f"it ends before token {first + count:,} of its tokens")
            done += count

    def check(self, begin: int, ids: np.ndarray) -> None:
        """Checks ids that were read from `begin` on.

        Raises:
            ValueError: one is outside of the vocabulary.
        """
        done = 0
        for number, _, count in self._parts(begin, len(ids)):
            highest = int(ids[done : done + count].max())
            if highest >= self.vocab_size:
                raise self._damaged(
                    number, f"it holds id {highest:,}, and the vocabulary has {self.vocab_size:,}"
                )
            done += count

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": OrderedDict()}

    def _parts(self, begin: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Files that hold these tokens: number, first token in it, how many."""
        number = bisect.bisect_right(self._ends, begin)
        while count:
            first = begin - self._ends[number] + self._shards[number].tokens
            some = min(count, self._ends[number] - begin)
            yield number, first, some
            begin, count, number = begin + some, count - some, number + 1

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
