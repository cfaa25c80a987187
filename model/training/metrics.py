"""The callback that writes metrics.jsonl (see metrics_file.py) and feeds the tracker from it.

A continued run first cuts the rows of steps that its checkpoint does not know, so each step
appears once.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from model.training.metrics_file import append, cut
from model.training.tracking import Tracker


class Metrics(Callback):
    """Writes the rows and hands each to the tracker; place it first among the callbacks.

    Args:
        path: the run's metrics.jsonl.
        log_every: optimizer steps between two train rows; the last step is always written.
        tracker: gets the kept rows at the start (`Tracker.start`), then every new one.
        columns: further columns of a train row, by the optimizer steps done.

    The module must have `last_metrics`, with at least `step` and `tokens`, after each step. Its
    values may be 0-d tensors, which are read only when a row is due: that waits for the device.
    """

    def __init__(
        self,
        path: Path,
        log_every: int,
        tracker: Tracker,
        columns: Callable[[int], Mapping[str, float]] = lambda step: {},
    ) -> None:
        if log_every < 1:
            raise ValueError(f"log_every={log_every} must be at least 1")
        self.path = Path(path)
        self.log_every = log_every
        self.tracker = tracker
        self.columns = columns
        self.train_seconds = 0.0
        """Seconds of training over all starts up to the last step, without validation."""
        self.tokens = 0
        self._started = False
        self._written_step = 0
        self._clock = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock = time.perf_counter()
        self._written_step = trainer.global_step
        self._start(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert pl_module.last_metrics["step"] == trainer.global_step
        self._advance_clock()
        self.tokens = int(pl_module.last_metrics["tokens"])
        step = trainer.global_step
        if step % self.log_every == 0 or step == trainer.max_steps:
            self._write_step(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._advance_clock()
        elif not self._started:  # no step was left to train
            self._start(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock = time.perf_counter()
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        values = {
            key: value for key, value in trainer.callback_metrics.items() if key.startswith("val_")
        }
        self.write({"step": trainer.global_step, "tokens": self.tokens, **values})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_step(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._write_step(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"train_seconds": self.train_seconds, "tokens": self.tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.train_seconds = state_dict["train_seconds"]
        self.tokens = state_dict["tokens"]

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row and hands it to the tracker; only rank 0 may call this."""
        numbers = {key: _number(value) for key, value in row.items()}
        append(self.path, numbers)
        self.tracker.log(numbers)

    def _start(self, trainer: Trainer) -> None:
        self._started = True
        if trainer.is_global_zero:
            self.tracker.start(cut(self.path, trainer.global_step))

    def _write_step(self, trainer: Trainer, module: LightningModule) -> None:
        step = module.last_metrics.get("step", 0)
        if step <= self._written_step:
            return
        self._written_step = step
        if trainer.is_global_zero:
            seconds = {"train_seconds": round(self.train_seconds, 3)}
            self.write(module.last_metrics | self.columns(step) | seconds)

    def _advance_clock(self) -> None:
        now = time.perf_counter()
        self.train_seconds += now - self._clock
        self._clock = now


def _number(value: Any) -> int | float:
    return value if isinstance(value, int) else float(value)
