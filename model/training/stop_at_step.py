"""The callback that acts on a stop signal: save between two steps, then leave training."""

import signal
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from model.training.checkpoints import Checkpoints
from model.training.stop import Stop, StopRequested


class StopAtStep(Callback):
    """Saves and raises `StopRequested` at the end of the step in which a signal came.

    A signal during a validation ends it at its next batch; continuing the run validates again. All
    ranks stop at the same step, whichever of them got the signal. Place it after
    `Metrics` and `Checkpoints` and before `CatchUpValidation`.

    Args:
        stop: the installed handlers.
        checkpoints: saves the step.
    """

    def __init__(self, stop: Stop, checkpoints: Checkpoints) -> None:
        self.stop = stop
        self.checkpoints = checkpoints

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning has put its own SIGTERM handler in front by now; it broadcasts inside the
        # handler, which can hang. It restores ours when training ends.
        self.stop.install()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stop.install()  # the same, for the validation after training

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._stop_if_requested(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            self._stop_if_requested(trainer)

    def _stop_if_requested(self, trainer: Trainer) -> None:
        number = self.stop.signal_number or 0
        if trainer.world_size > 1:
            flag = torch.tensor(number, device=trainer.strategy.root_device)
            number = int(trainer.strategy.reduce(flag, reduce_op="max"))
        if number == 0:
            return
        self.stop.request(number)
        path = self.checkpoints.save(trainer)
        step = trainer.global_step
        raise StopRequested(
            f"Stopped by {signal.Signals(number).name} after step {step}. Saved {path}; the same "
            "command continues.",
            step,
        )
