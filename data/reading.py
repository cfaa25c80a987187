"""Which rows every optimizer step reads: sources, buckets, epochs and stages, from the step alone.

`data.order` says which window of one split a sample is, `data.mixture` which source it comes from.
Here both are put together for a run that may change the length of rows, their number and the shares
of the sources from one stage to the next. The only state is the number of steps done.

A source is cut into blocks as long as the longest row of the run, so that stages with other lengths
cut the same blocks into more rows. A bucket (see `data.lengths`) of a source is a set of its
blocks. Every bucket counts its own blocks through the whole run: block position p lies in epoch
p // N and is block permutation(p % N) of that epoch. A stage takes the positions that follow those
of the stage before it, so no token is read twice before all of its bucket were read, in whichever
stage.

Where rows are as long as blocks, that is all. Where q rows make a block, the rows of all the blocks
that the stage takes from one epoch are shuffled once more, by a permutation of their own; a block
of which the stage leaves rows unread is not continued by the next stage, which loses less than one
block per stage and bucket.

A run with one source and without buckets has the order of `data.order.window`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.mixture import Interleave
from data.order import batch_samples, permutation, window


@dataclass(frozen=True)
class ReadStage:
    """Optimizer steps that read alike.

    steps: how many; None: without end, which only the last stage may be.
    rows: per optimizer step, over all ranks.
    seq_len: tokens of a row; divides the longest of the run.
    shares: of the sources, as `data.mixture.Interleave` takes them.
    """

    steps: int | None
    rows: int
    seq_len: int
    shares: tuple[int, ...]


@dataclass(frozen=True)
class ReadSource:
    """A source of windows.

    name: part of the key of its order.
    blocks: how many blocks each of its buckets has.
    shares: of its buckets; 0 where a bucket has no block.
    """

    name: str
    blocks: tuple[int, ...]
    shares: tuple[int, ...]


class Places(NamedTuple):
    """Where the rows of one step and rank are: int64 [R] each, and the stage they belong to.

    Row `part` of block number `block` of a bucket, in its epoch `epoch`, all counted from 0.
    """

    sample: np.ndarray
    source: np.ndarray
    bucket: np.ndarray
    epoch: np.ndarray
    block: np.ndarray
    part: np.ndarray
    stage: int


class Amount(NamedTuple):
    """What a number of steps reads of one bucket."""

    rows: int
    tokens: int
    epochs: float


class Reading:
    """The order of a run."""

    def __init__(
        self, sources: Sequence[ReadSource], stages: Sequence[ReadStage], seed: int
    ) -> None:
        self.sources = tuple(sources)
        self.stages = tuple(stages)
        self.seed = seed
        self.longest = max(stage.seq_len for stage in stages)
        assert all(self.longest % stage.seq_len == 0 for stage in stages), stages
        assert all(stage.steps is not None for stage in stages[:-1]), stages
        # Beyond the end of a stage that shuffles rows within its blocks there is no order.
        assert stages[-1].steps is not None or stages[-1].seq_len == self.longest, stages
        self._alone = len(self.sources) == 1 and len(self.sources[0].blocks) == 1
        self._mixtures = [Interleave(stage.shares) for stage in stages]
        self._buckets = [Interleave(source.shares) for source in sources]
        self._first_steps, self._first_samples, self._first_blocks = [0], [0], [self._none()]
        for number, stage in enumerate(stages[:-1]):
            self._first_steps.append(self._first_steps[-1] + stage.steps)
            self._first_samples.append(self._first_samples[-1] + stage.steps * stage.rows)
            taken = self._blocks(number, self._rows_of(number, stage.steps))
            self._first_blocks.append(
                [
                    [before + more for before, more in zip(*pair, strict=True)]
                    for pair in zip(self._first_blocks[-1], taken, strict=True)
                ]
            )

    def stage_at(self, step: int) -> int:
        """Number of the stage that optimizer step `step`, counted from 0, belongs to."""
        return int(np.searchsorted(self._first_steps, step, side="right")) - 1

    def places(self, step: int, rank: int, world: int) -> Places:
        """Where the rows of one rank at one optimizer step are.

        Steps after the last one of all, which only a loader that works ahead asks for, are
        answered by the last one.

        Raises:
            ValueError: the ranks cannot share the rows equally.
        """
        number = self.stage_at(step)
        stage = self.stages[number]
        local = step - self._first_steps[number]
        if stage.steps is not None:
            local = min(local, stage.steps - 1)
        sample = batch_samples(local, stage.rows, rank, world)
        source, index = self._mixtures[number].of(sample)
        bucket, epoch, block, part = (np.zeros_like(sample) for _ in range(4))
        for s in np.unique(source).tolist():
            own = source == s
            bucket[own], index[own] = self._buckets[s].of(index[own])
            for b in np.unique(bucket[own]).tolist():
                at = own & (bucket == b)
                epoch[at], block[at], part[at] = self._order(number, s, b, index[at])
        first = self._first_samples[number]
        return Places(sample + first, source, bucket, epoch, block, part, number)

    def amounts(self, steps: int) -> list[list[Amount]]:
        """What the first `steps` optimizer steps read, by source and bucket."""
        rows, tokens, blocks = self._none(), self._none(), self._none()
        for number, stage in enumerate(self.stages):
            own = steps - self._first_steps[number]
            own = max(0, own if stage.steps is None else min(own, stage.steps))
            for s, counts in enumerate(self._rows_of(number, own)):
                for b, count in enumerate(counts):
                    rows[s][b] += count
                    tokens[s][b] += count * stage.seq_len
                    blocks[s][b] += count * stage.seq_len / self.longest
        return [
            [
                Amount(rows[s][b], tokens[s][b], blocks[s][b] / size if size else 0.0)
                for b, size in enumerate(source.blocks)
            ]
            for s, source in enumerate(self.sources)
        ]

    def _order(
        self, number: int, source: int, bucket: int, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Epoch, block and part of rows, numbered within their stage, source and bucket."""
        stage, read = self.stages[number], self.sources[source]
        size, first = read.blocks[bucket], self._first_blocks[number][source][bucket]
        names = () if self._alone else (read.name, str(bucket))
        parts = self.longest // stage.seq_len
        if parts == 1:
            return *window(first + index, size, self.seed, *names), np.zeros_like(index)
        end = first + self._blocks(number, self._rows_of(number, stage.steps))[source][bucket]
        epoch = (first + index // parts) // size
        block, part = np.empty_like(index), np.empty_like(index)
        for e in np.unique(epoch).tolist():
            at = epoch == e
            # The positions that this stage takes from this epoch.
            begin, stop = max(first, e * size), min(end, (e + 1) * size)
            key = (self.seed, e, *names, f"stage {number}")
            rows = (stop - begin) * parts
            shuffled = permutation(index[at] - (begin - first) * parts, rows, key)
            place = begin + shuffled // parts - e * size
            block[at] = permutation(place, size, (self.seed, e, *names))
            part[at] = shuffled % parts
        return epoch, block, part

    def _rows_of(self, number: int, steps: int) -> list[list[int]]:
        """Rows that the first `steps` steps of a stage read, by source and bucket."""
        counts = self._mixtures[number].counts(steps * self.stages[number].rows)
        return [mix.counts(count) for mix, count in zip(self._buckets, counts, strict=True)]

    def _blocks(self, number: int, rows: list[list[int]]) -> list[list[int]]:
        """Blocks that hold so many rows of a stage."""
        parts = self.longest // self.stages[number].seq_len
        return [[-(-count // parts) for count in counts] for counts in rows]

    def _none(self) -> list[list[int]]:
        return [[0] * len(source.blocks) for source in self.sources]
