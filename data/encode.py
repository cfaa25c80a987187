"""Turns the documents of one split into its files of token ids.

The text is cut into tasks of about 1 MiB, of some documents or of a piece of a long one, which
processes read from the spool and encode. Tasks depend on the text alone, so that the tokens do not
depend on the number of processes; a task and its result are all that a process holds, however long
a document is.

A long document is cut where that changes no token (`Tokenizer.find_cut`). In a text that has no
such place for 1 MiB (a million equal characters, say) one cut is made all the same, and counted.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from data.index import Split, SplitIndex, token_dtype
from data.plan import part_folder, ranges_file, rows
from data.pool import in_order
from data.spool import TEXT_FILE
from data.tokenizer import Tokenizer, tokenizer_path
from data.writer import SplitWriter

SHARD_TOKENS = 1 << 27
TASK_BYTES = 1 << 20

_STRETCH = 1 << 10
"""Bytes that are searched at once for a place to cut."""

_TASKS_PER_PROCESS = 4
"""Fewer would not be worth starting a process, which takes about as long as this many tasks."""


class Task(NamedTuple):
    """Documents [first, end) of a split, or one piece of document `first`."""

    first: int
    end: int
    piece: int | None


class Block(NamedTuple):
    """What became of a task. starts: where documents start in `ids`.  bytes: of text."""

    ids: np.ndarray
    starts: np.ndarray
    bytes: int


def write_split(
    folder: Path, number: int, stem: str, split: Split, processes: int, bar: tqdm
) -> tuple[SplitIndex, int]:
    """Writes every document of a part's split as BOS, its tokens, EOS; `bar` moves by its bytes.

    Continues an interrupted call with the same arguments after its last complete shard.
    stem: what file names begin with.  Returns the split's part of the index, and how many cuts of
    long documents may have changed a token.
    """
    ranges = np.load(ranges_file(folder, number, split), mmap_mode="r")
    encoder = Encoder(folder, number, split, TASK_BYTES)
    writer = SplitWriter(folder, stem, encoder.tokenizer.size, SHARD_TOKENS)
    done = int(ranges[: writer.documents, 1].sum())
    bar.update(done)
    left = int(ranges[:, 1].sum()) - done
    processes = max(1, min(processes, left // (_TASKS_PER_PROCESS * TASK_BYTES)))
    work = tasks(ranges, writer.documents, TASK_BYTES)
    with closing(encoder), closing(in_order(encoder, work, processes)) as blocks:
        for block in blocks:
            writer.extend(block.ids, block.starts)
            bar.update(block.bytes)
        return writer.close(int(ranges[:, 1].sum())), encoder.unsafe_cuts()


def tasks(ranges: np.ndarray, first: int, task_bytes: int) -> Iterator[Task]:
    """Tasks for the documents from number `first` on."""
    begin, total = first, 0
    for number, (_, size) in enumerate(rows(ranges[first:]), start=first):
        if begin < number and total + size > task_bytes:
            yield Task(begin, number, None)
            begin, total = number, 0
        if size > task_bytes:
            yield from (Task(number, number + 1, i) for i in range(-(-size // task_bytes)))
            begin = number + 1
        else:
            total += size
    if begin < len(ranges):
        yield Task(begin, len(ranges), None)


@dataclass
class Encoder:
    """Encodes tasks of one split of one part; can be sent to another process.

    folder: where the tokenizer and the part's folder are.
    """

    folder: Path
    number: int
    split: Split
    task_bytes: int

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(tokenizer_path(self.folder))

    def __call__(self, task: Task) -> Block:
        if task.piece is None:
            return self._documents(self._ranges[task.first : task.end].tolist())
        return self._piece(*self._ranges[task.first].tolist(), task.piece)

    def unsafe_cuts(self) -> int:
        """How many cuts of long documents are made that may change a token."""
        return sum(
            self._border(begin, size, number)[1]
            for begin, size in rows(self._ranges)
            for number in range(1, -(-size // self.task_bytes))
        )

    def close(self) -> None:
        """Closes the file of the text."""
        if "_file" in self.__dict__:
            os.close(self.__dict__.pop("_file"))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def _ranges(self) -> np.ndarray:
        return np.load(ranges_file(self.folder, self.number, self.split), mmap_mode="r")

    @cached_property
    def _file(self) -> int:
        return os.open(part_folder(self.folder, self.number) / TEXT_FILE, os.O_RDONLY)

    def _documents(self, ranges: list[list[int]]) -> Block:
        tokenizer = self.tokenizer
        parts, counts = [], []
        for begin, size in ranges:
            of_document = tokenizer.parts(os.pread(self._file, size, begin).decode("utf-8"))
            parts += of_document
            counts.append(len(of_document))
        encoded = iter(tokenizer.encode_parts(parts))
        pieces, starts, place = [], [], 0
        for count in counts:
            starts.append(place)
            ids = list(islice(encoded, count))
            pieces += [self._bos, *ids, self._eos]
            place += sum(map(len, ids)) + 2
        return self._block(pieces, starts, sum(size for _, size in ranges))

    def _piece(self, begin: int, size: int, number: int) -> Block:
        first, _ = self._border(begin, size, number)
        last, _ = self._border(begin, size, number + 1)
        text = os.pread(self._file, last - first, begin + first).decode("utf-8")
        pieces = self.tokenizer.encode_parts(self.tokenizer.parts(text))
        if number == 0:
            pieces = [self._bos, *pieces]
        if (number + 1) * self.task_bytes >= size:
            pieces = [*pieces, self._eos]
        return self._block(pieces, [0] if number == 0 else [], last - first)

    def _border(self, begin: int, size: int, number: int) -> tuple[int, int]:
        """Where piece `number` of a document begins, and 1 if a cut there may change a token."""
        earliest = number * self.task_bytes
        latest = earliest + self.task_bytes
        if number == 0 or earliest >= size:
            return min(earliest, size), 0
        for place in range(earliest, min(latest, size), _STRETCH):
            cut = self._cut(begin, size, place, min(place + _STRETCH, latest, size))
            if cut is not None:
                return cut, 0
        if size <= latest:
            return size, 0
        return self._character(begin, size, earliest), 1

    def _cut(self, begin: int, size: int, first: int, last: int) -> int | None:
        """The first place in [first, last) of a document where a cut changes no token."""
        around = 4 * self.tokenizer.context  # a character has up to 4 bytes
        first, last = (self._character(begin, size, place) for place in (first, last))
        places = self._character(begin, size, max(0, first - around)), first, last
        data = os.pread(self._file, min(size, last + around) - places[0], begin + places[0])
        before, within = data[: first - places[0]].decode(), data[: last - places[0]].decode()
        # The last character may be cut off.
        text = data.decode("utf-8", errors="ignore")
        cut = self.tokenizer.find_cut(text, len(before), len(within))
        return None if cut is None else places[0] + len(text[:cut].encode())

    def _character(self, begin: int, size: int, place: int) -> int:
        """The first start of a character of a document from `place` on."""
        data = os.pread(self._file, min(4, size - place), begin + place)
        return place + next((i for i, byte in enumerate(data) if byte & 0xC0 != 0x80), len(data))

    def _block(self, pieces: list[np.ndarray], starts: list[int], size: int) -> Block:
        dtype = token_dtype(self.tokenizer.size)
        ids = np.concatenate(pieces).astype(dtype) if pieces else np.zeros(0, dtype)
        return Block(ids, np.array(starts, dtype=np.int64), size)

    @cached_property
    def _bos(self) -> np.ndarray:
        return np.array([self.tokenizer.bos_id], dtype=np.int32)

    @cached_property
    def _eos(self) -> np.ndarray:
        return np.array([self.tokenizer.eos_id], dtype=np.int32)
