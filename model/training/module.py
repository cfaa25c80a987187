"""The Lightning module: one call of `training_step` is one optimizer step.

Optimization is manual because the loss of a step is a sum over micro-batches and devices divided
by the *global* number of targets, which no average of per-batch means gives; and because clipping,
the decision about non-finite gradients and the schedule belong to the optimizer step. So
`trainer.global_step` counts optimizer steps, and with them batches and tokens.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor

from model.network import LanguageModel
from model.training.config import OptimizerSettings, ScheduleSettings, TrainerSettings
from model.training.gradients import clip
from model.training.loss import IGNORED, chunked_cross_entropy
from model.training.optimizers import build_optimizer
from model.training.schedules import learning_rate_factor
from model.training.stages import Stage, stage_at, tokens_after, total_steps

LN2 = 0.6931471805599453


class NonFiniteError(ValueError):
    """Too many optimizer steps in a row had a non-finite gradient: the settings do not train."""


class ValidationSet(NamedTuple):
    """The held-out text of a source."""

    name: str
    """Empty for a data set that is alone: it has no numbers of its own."""
    weight: float
    """In the mean over all sources."""
    bytes_per_target: float
    """UTF-8 bytes that one target stands for on average."""


class TrainingModule(L.LightningModule):
    """Trains a `LanguageModel`.

    Args:
        model: the network.
        stages: of the run; its schedule refers to their tokens.
        validation: one per loader of validation batches.

    Batches are dicts of int64 [rows, T]: `tokens`, `labels` (-100: not a target), `segments`.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: OptimizerSettings,
        schedule: ScheduleSettings,
        trainer: TrainerSettings,
        stages: Sequence[Stage],
        validation: Sequence[ValidationSet],
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.optimizer_settings = optimizer
        self.schedule = schedule
        self.training_settings = trainer
        self.stages = stages
        self.total_tokens = tokens_after(stages, total_steps(stages))
        self.validation = validation
        self.last_metrics: dict[str, float | Tensor] = {}
        self.skipped_steps = 0
        self.skipped_in_a_row = 0
        self._step_started = 0.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        precision = self.training_settings.precision
        return build_optimizer(self.optimizer_settings, self.model, precision)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        stage = self.enter_stage(self.trainer.global_step)
        self.model.redraw(self.trainer.global_step)
        step = self.trainer.global_step + 1
        tokens = tokens_after(self.stages, step)
        targets = self._sum_over_ranks((batch["labels"] != IGNORED).sum())
        # Data-parallel strategies average gradients over ranks: undo it, the sum is wanted.
        share = self.trainer.world_size / targets.clamp(min=1)

        cross_entropy = torch.zeros((), device=self.device)
        micros = list(micro_batches(batch, stage.micro_batch_rows))
        for number, micro in enumerate(micros, start=1):
            loss, summed = self._loss(micro)
            with nullcontext() if number == len(micros) else self._gradients_kept():
                self.manual_backward(loss * share)
            cross_entropy += summed

        optimizer = self.optimizers()
        grad_norm = clip(self.model.parameters(), self.training_settings.clip_grad_norm)
        finite = bool(torch.isfinite(grad_norm))
        factor = learning_rate_factor(self.schedule, tokens, self.total_tokens)
        optimizer.optimizer.scale_lr(factor)
        optimizer.optimizer.skip_next = not finite
        optimizer.step()
        optimizer.zero_grad()
        self._count_skipped(finite, step)

        now = time.perf_counter()
        self.last_metrics = {
            "step": step,
            "tokens": tokens,
            "loss": self._sum_over_ranks(cross_entropy) / targets.clamp(min=1),
            "learning_rate": optimizer.param_groups[0]["lr"],
            "grad_norm": grad_norm,
            "tokens_per_second": stage.batch_tokens / (now - self._step_started),
            "skipped_steps": self.skipped_steps,
        }
        if len(self.stages) > 1:
            number = stage_at(self.stages, step - 1)
            self.last_metrics |= {"stage": number, "seq_len": stage.seq_len}
        self._step_started = now

    def validation_step(
        self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        _, summed = self._loss(batch)
        self._validation_sum[dataloader_idx] += summed.double()
        self._validation_targets[dataloader_idx] += (batch["labels"] != IGNORED).sum()

    def enter_stage(self, step: int) -> Stage:
        """Makes the model that of the step after `step` optimizer steps; returns its stage."""
        stage = self.stages[stage_at(self.stages, step)]
        if len(self.stages) > 1:
            self.model.set_rope_base(stage.rope_base)
        return stage

    def on_train_start(self) -> None:
        self._step_started = time.perf_counter()

    def on_validation_epoch_start(self) -> None:
        self.enter_stage(max(0, self.trainer.global_step - 1))  # as the last step trained it
        sets = len(self.validation)
        self._validation_sum = torch.zeros(sets, dtype=torch.float64, device=self.device)
        self._validation_targets = torch.zeros(sets, dtype=torch.int64, device=self.device)

    def on_validation_epoch_end(self) -> None:
        total = self._sum_over_ranks(self._validation_sum)
        nats = (total / self._sum_over_ranks(self._validation_targets)).tolist()
        for name, value in validation_metrics(nats, self.validation).items():
            self.log(name, value)

    def on_validation_end(self) -> None:
        self._step_started = time.perf_counter()  # validation is not part of the throughput

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["skipped_steps"] = self.skipped_steps
        checkpoint["model_config"] = self.model.settings.model_dump(mode="json")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.skipped_steps = checkpoint["skipped_steps"]

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(to minimise, cross-entropy): sums over the targets, in nats."""
        hidden = self.model.hidden(batch["tokens"], batch["segments"])
        return chunked_cross_entropy(
            hidden.flatten(0, 1),
            self.model.head.weight,
            batch["labels"].flatten(),
            self.training_settings.loss_chunk,
            self.training_settings.z_loss if self.training else 0.0,
        )

    def _count_skipped(self, finite: bool, step: int) -> None:
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        self.skipped_steps += not finite
        if self.skipped_in_a_row >= self.training_settings.max_skipped_steps:
            raise NonFiniteError(
                f"{self.skipped_in_a_row} optimizer steps in a row up to step {step} had a "
                "non-finite gradient and were skipped; stopping. The last checkpoint is from "
                "before them. Try a lower optimizer.lr, a longer schedule.warmup or "
                "trainer.precision=32-true."
            )

    def _gradients_kept(self) -> AbstractContextManager:
        """Ranks exchange gradients once per step, not for each of its micro-batches."""
        strategy = self.trainer.strategy
        if isinstance(strategy, ParallelStrategy):
            return strategy.block_backward_sync()
        return nullcontext()

    def _sum_over_ranks(self, value: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return value
        return self.trainer.strategy.reduce(value, reduce_op="sum")


def micro_batches(batch: dict[str, Tensor], rows: int | None) -> Iterator[dict[str, Tensor]]:
    """Parts of so many rows, the last maybe fewer; None: the batch in one."""
    count = len(batch["tokens"])
    rows = rows or count
    for start in range(0, count, rows):
        yield {name: value[start : start + rows] for name, value in batch.items()}


def validation_metrics(
    nats_per_target: Sequence[float], sets: Sequence[ValidationSet]
) -> dict[str, float]:
    """val_nats_per_token and val_bits_per_byte: means over the sources by weight, and of each.

    Args:
        nats_per_target: the loss of each source.
    """
    rows = [
        (
            one.name,
            one.weight,
            {"nats_per_token": nats, "bits_per_byte": nats / LN2 / one.bytes_per_target},
        )
        for nats, one in zip(nats_per_target, sets, strict=True)
    ]
    weights = sum(weight for _, weight, _ in rows)
    values = {
        f"val_{key}": sum(weight * own[key] for _, weight, own in rows) / weights
        for key in ("nats_per_token", "bits_per_byte")
    }
    for name, _, own in rows:
        if name:
            values |= {f"val_{name}_{key}": value for key, value in own.items()}
    return values
