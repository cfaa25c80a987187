"""Lightning data module: prepared rows in the order of `data.order`, one item per optimizer step.

An item holds the rows of one rank for one optimizer step; the training module cuts it into
micro-batches. The training loader starts at the step the trainer has reached (a checkpoint restores
that before loaders are built), so continuing needs no loader state. It has no length: the run ends
after a number of steps, and epochs of the data are not epochs of Lightning.

Axes: R rows of this rank, T tokens of a row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Self

import torch
from lightning import LightningDataModule
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

from data.config import DataConfig
from data.order import batch_samples
from data.packed import PackedSplit
from data.rows import Batch, RowStage, TrainRows
from data.sets import Sets


class PackedDataModule(LightningDataModule):
    """Serves prepared data sets.

    sets: the data sets by the names of their sources, see `data.sets`.
    data: their settings; rows of validation have `data.seq_len` tokens in every stage.
    weights: of the sources.
    stages: what an optimizer step reads, see `data.rows`.
    val_rows: rows per validation batch and rank.
    val_batches: how many such batches one rank alone would validate; several share their rows.
        None: all rows.
    start_step: gives the first optimizer step to serve; None: the trainer's `global_step`.
    rank, world: this process among the data-parallel ones; None: the trainer's.
    Raises ValueError if the rows of a step are not a multiple of the number of ranks (when loaders
    are built).
    """

    def __init__(
        self,
        sets: Sets,
        data: DataConfig,
        weights: Mapping[str, float | Fraction],
        stages: Sequence[RowStage],
        *,
        val_rows: int,
        val_batches: int | None = None,
        start_step: Callable[[], int] | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        super().__init__()
        self.train = TrainRows(sets, weights, data.by_length, stages, data.seed)
        self.validation = [
            PackedSplit(prepared.folder, "validation", data.seq_len, prepared.index)
            for prepared in sets.values()
        ]
        self.data = data
        self.val_rows = val_rows
        self.val_batches = val_batches
        self._start_step = start_step or (lambda: self.trainer.global_step)
        self._rank = rank
        self._world = world

    def train_dataloader(self) -> DataLoader:
        """Endless loader of {tokens, labels, segments: int64 [R, T]; samples: int64 [R]}."""
        rank, world = self._place()
        steps = TrainSteps(self.train, self._start_step(), rank, world)
        return DataLoader(
            steps,
            batch_size=None,
            num_workers=self.data.workers,
            pin_memory=self._on_cuda(),
            generator=_own_generator(),
        )

    def val_dataloader(self) -> list[DataLoader]:
        """One loader per source: its validation rows in order, shared out over the ranks.

        Every rank gets equally many batches of the same shape, as collectives need: missing rows
        are padding without targets. `samples` are row numbers, of missing rows -1.
        """
        return [self._val_loader(split) for split in self.validation]

    def _val_loader(self, split: PackedSplit) -> DataLoader:
        most = None if self.val_batches is None else self.val_batches * self.val_rows
        batches = ValidationBatches(split, self.val_rows, *self._place(), most)
        return DataLoader(
            batches,
            batch_size=None,
            # Lightning would split the batches over ranks a second time; it leaves alone loaders
            # that have this sampler already.
            sampler=DistributedSampler(batches, num_replicas=1, rank=0, shuffle=False),
            pin_memory=self._on_cuda(),
            generator=_own_generator(),
        )

    def _place(self) -> tuple[int, int]:
        rank = self.trainer.global_rank if self._rank is None else self._rank
        world = self.trainer.world_size if self._world is None else self._world
        return rank, world

    def _on_cuda(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"


class TrainSteps(IterableDataset):
    """Endless stream of this rank's rows, one item per optimizer step, from `start_step` on.

    Loader process w of W makes every W-th step beginning with the w-th; the loader takes from them
    in turn, so the order is that of a single process. (An iterable data set, because Lightning
    replaces the samplers of indexed ones when there is more than one rank.)
    """

    def __init__(self, rows: TrainRows, start_step: int, rank: int, world: int) -> None:
        for stage in rows.reading.stages:  # a wrong batch size fails here, at once
            batch_samples(0, stage.rows, rank, world)
        self.rows = rows
        self.start_step = start_step
        self.rank = rank
        self.world = world

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        step = self.start_step + (worker.id if worker else 0)
        while True:
            try:
                item = self.rows.item(step, self.rank, self.world)
            except (ValueError, OSError) as error:
                if worker is None:
                    raise
                raise ReadError.marked(error) from None
            yield item
            step += worker.num_workers if worker else 1


class ReadError(ValueError):
    """What went wrong in a loader process, in its own words.

    torch makes the exception anew in the process that trains, from the text of the whole traceback:
    the message is what that text has between two marks.
    """

    _MARK = "\x1f"

    def __init__(self, message: str) -> None:
        super().__init__(message.split(self._MARK)[1] if message.startswith("Caught ") else message)

    @classmethod
    def marked(cls, error: ValueError | OSError) -> Self:
        """The exception to raise in the loader process for this one."""
        named = isinstance(error, OSError) and error.filename is not None
        message = f"{error.filename}: {error.strerror}" if named else str(error)
        return cls(f"{cls._MARK}{message}{cls._MARK}")


class ValidationBatches(Dataset):
    """Batch b of rank r of W: rows [(b W + r) R, (b W + r + 1) R) of the split.

    R is `batch_rows`, or what a rank has of the split, if that is less. Only the first `most` rows
    of the split are used.
    """

    def __init__(
        self, rows: PackedSplit, batch_rows: int, rank: int, world: int, most: int | None = None
    ) -> None:
        if batch_rows < 1:
            raise ValueError(f"A validation batch needs at least 1 row, not {batch_rows}.")
        self.rows = rows
        self.used = len(rows) if most is None else min(most, len(rows))
        # More rows than the ranks' shares of the split would only be padding.
        self.batch_rows = min(batch_rows, max(1, -(-self.used // world)))
        self.rank = rank
        self.world = world

    def __len__(self) -> int:
        return -(-self.used // (self.batch_rows * self.world))

    def __getitem__(self, batch: int) -> Batch:
        first = (batch * self.world + self.rank) * self.batch_rows
        samples = [i if i < self.used else -1 for i in range(first, first + self.batch_rows)]
        rows = [self.rows.empty_row() if i < 0 else self.rows[i] for i in samples]
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        return batch | {"samples": torch.tensor(samples)}


def _own_generator() -> torch.Generator:
    """Keeps the loaders, which draw a seed whenever they start, off the global generator: otherwise
    a continued run, or one with other validation steps, would draw other dropout masks."""
    return torch.Generator()
