"""The training rows of a run: the opened splits of its sources, in the order of `data.reading`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import get_worker_info

from data.config import LengthConfig
from data.lengths import LengthBuckets, names
from data.mixture import MOST_SLOTS, whole_shares
from data.packed import PackedSplit, fill
from data.reading import Places, Reading, ReadSource, ReadStage
from data.sets import Sets

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class RowStage:
    """Optimizer steps that read alike.

    steps: how many; None: without end, which only a single stage may be.
    rows: per optimizer step, over all ranks.
    seq_len: tokens of a row.
    weights: of the sources, by name; what is not named has weight 0. None: those of the run.
    """

    steps: int | None
    rows: int
    seq_len: int
    weights: Mapping[str, float] | None = None


class Stage(Protocol):
    """What is read of a stage of a run (`model.training.stages`)."""

    steps: int
    seq_len: int
    weights: Mapping[str, float] | None

    @property
    def rows(self) -> int: ...


def row_stages(stages: Sequence[Stage]) -> list[RowStage]:
    """The stages of a run as `TrainRows` takes them.

    One stage alone gets no end, so that its order cannot depend on the length of the run.
    """
    return [
        RowStage(stage.steps if len(stages) > 1 else None, stage.rows, stage.seq_len, stage.weights)
        for stage in stages
    ]


class Row(NamedTuple):
    """One row of a batch and where it is from, for those who look at data."""

    sample: int
    source: str
    bucket: str | None
    epoch: int
    window: int
    tensors: Batch


class TrainRows:
    """Any rows of a run, by optimizer step and rank.

    sets: the data sets by the names of their sources.
    weights: of the sources.
    by_length: emphasis within every source; None: none.
    stages: see `RowStage`.

    Raises:
        ValueError: a source has too few tokens for a row, or a weight is too small to be kept.
    """

    def __init__(
        self,
        sets: Sets,
        weights: Mapping[str, float | Fraction],
        by_length: LengthConfig | None,
        stages: Sequence[RowStage],
        seed: int,
    ) -> None:
        self.names = list(sets)
        self.bucket_names = None if by_length is None else list(names(by_length.bounds))
        longest = max(stage.seq_len for stage in stages)
        lengths = {stage.seq_len for stage in stages}
        self.splits = {
            (name, length): PackedSplit(prepared.folder, "train", length, prepared.index)
            for name, prepared in sets.items()
            for length in lengths
        }
        self._buckets: list[LengthBuckets | None] = []
        sources = []
        for name in sets:
            split = self.splits[name, longest]
            # Where blocks are cut into rows, the last one must be whole.
            blocks = len(split) if len(lengths) == 1 else (split.stream_tokens - 1) // longest
            if split.stream_tokens <= longest:  # and its last label
                raise ValueError(
                    f"{split.folder} has {split.stream_tokens:,} training tokens, too few for one "
                    f"row of {longest:,} tokens: give more text, or shorter rows"
                )
            buckets = None
            sizes, shares = (blocks,), (1,)
            if by_length is not None:
                buckets = split.length_buckets(blocks, by_length.bounds)
                sizes = tuple(buckets.sizes)
                shares = _bucket_shares(name, sizes, by_length, self.bucket_names)
            self._buckets.append(buckets)
            sources.append(ReadSource(name, sizes, shares))
        read = [
            ReadStage(
                stage.steps,
                stage.rows,
                stage.seq_len,
                _source_shares(self.names, weights if stage.weights is None else stage.weights),
            )
            for stage in stages
        ]
        self.reading = Reading(sources, read, seed)

    def item(self, step: int, rank: int, world: int) -> Batch:
        """{tokens, labels, segments: int64 [R, T]; samples: int64 [R]} of one optimizer step."""
        places = self.reading.places(step, rank, world)
        shape = (len(places.sample), self.reading.stages[places.stage].seq_len)
        batch = {name: _empty(shape) for name in ("tokens", "labels", "segments")}
        rows = [(self._split(places, i), self._window(places, i)) for i in range(shape[0])]
        fill(rows, {name: values.numpy() for name, values in batch.items()})
        return batch | {"samples": torch.from_numpy(places.sample)}

    def rows(self, step: int, rank: int, world: int) -> list[Row]:
        """The rows of `item`, each with where it is from."""
        places = self.reading.places(step, rank, world)
        return [
            Row(
                int(places.sample[i]),
                self.names[places.source[i]],
                self.bucket_names and self.bucket_names[places.bucket[i]],
                int(places.epoch[i]),
                window := self._window(places, i),
                self._split(places, i)[window],
            )
            for i in range(len(places.sample))
        ]

    def epochs(self, steps: int) -> dict[str, float]:
        """Columns of metrics: how often each source was read in the first `steps` steps."""
        columns = {}
        sources = zip(self.names, self.reading.sources, self.reading.amounts(steps), strict=True)
        for name, source, amounts in sources:
            blocks = sum(a.epochs * n for a, n in zip(amounts, source.blocks, strict=True))
            columns[f"epochs_{name}" if name else "epochs"] = blocks / sum(source.blocks)
        return columns

    def tokens_in(self, name: str, bucket: int) -> int:
        """Tokens of the blocks of a bucket."""
        source = self.reading.sources[self.names.index(name)]
        return source.blocks[bucket] * self.reading.longest

    def _split(self, places: Places, i: int) -> PackedSplit:
        length = self.reading.stages[places.stage].seq_len
        return self.splits[self.names[places.source[i]], length]

    def _window(self, places: Places, i: int) -> int:
        block, buckets = int(places.block[i]), self._buckets[places.source[i]]
        if buckets is not None:
            block = buckets.window(int(places.bucket[i]), block)
        parts = self.reading.longest // self.reading.stages[places.stage].seq_len
        return block * parts + int(places.part[i])


def _empty(shape: tuple[int, ...]) -> torch.Tensor:
    """int64 [shape], not initialised."""
    if get_worker_info() is None:
        # Of NumPy: torch's aligned blocks do not fit where one was freed, and a process that makes
        # them grows by nearly every batch (measured: by 300 MB in 30 batches of 12 MB).
        return torch.from_numpy(np.empty(shape, np.int64))
    # A loader process sends its tensors in shared memory: made there, they need not be copied.
    storage = torch.UntypedStorage._new_shared(8 * math.prod(shape))
    return torch.empty(0, dtype=torch.int64).set_(storage, 0, shape)


def _source_shares(sources: list[str], weights: Mapping[str, float | Fraction]) -> tuple[int, ...]:
    try:
        return tuple(whole_shares([weights.get(name, 0.0) for name in sources]))
    except ValueError:
        raise ValueError(
            f"a source is to be read less than once in {MOST_SLOTS:,} rows, which is too little to "
            "be kept: raise its weight, or leave it out. Weights: "
            + ", ".join(f"{name} {float(weights.get(name, 0)):g}" for name in sources)
        ) from None


def _bucket_shares(
    name: str, sizes: Sequence[int], by_length: LengthConfig, bucket_names: list[str]
) -> tuple[int, ...]:
    """Shares of the buckets: their weights times the windows that they have."""
    exact = [
        Fraction(str(weight)) * size for weight, size in zip(by_length.weights, sizes, strict=True)
    ]
    have = ", ".join(f"{b} {n:,}" for b, n in zip(bucket_names, sizes, strict=True))
    of = f" of source {name}" if name else ""
    if not any(exact):
        raise ValueError(
            f"data.by_length: every bucket with rows has weight 0, so that nothing{of} would be "
            f"read. Rows by tokens of a document: {have}"
        )
    try:
        return tuple(whole_shares(exact))
    except ValueError:
        raise ValueError(
            f"data.by_length: a bucket{of} would be read less than once in {MOST_SLOTS:,} rows, "
            "which is too little to be kept: leave out a bound, raise its weight or make it 0. "
            f"Rows by tokens of a document: {have}"
        ) from None
