"""One of two ranks, started by test_two_ranks.py: prints what it ends its trainings with.

python two_ranks.py FOLDER
"""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Literal

import torch
from standin import Standin, StandinData, make_trainer

from model.training.catch_up import CatchUpValidation
from model.training.checkpoint_io import CheckpointError
from model.training.checkpoints import Checkpoints, latest
from model.training.metrics import Metrics
from model.training.stop import Stop, StopRequested
from model.training.stop_at_step import StopAtStep
from model.training.tracking import Tracker


class Disturbed(Standin):
    """Rank 1 gets a signal in step 7, or rank 0 may not write whole checkpoints from step 9 on."""

    def __init__(self, disturbance: Literal["signal", "full disk", None]) -> None:
        super().__init__()
        self.disturbance = disturbance

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        rank = self.trainer.global_rank
        if self.global_step == 6 and self.disturbance == "signal" and rank == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        if self.global_step == 8 and self.disturbance == "full disk" and rank == 0:
            limit_file_size(2000)
        super().training_step(batch, batch_idx)


def limit_file_size(size: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def train(folder: Path, disturbance: Literal["signal", "full disk", None]) -> None:
    checkpoints = Checkpoints(folder / "checkpoints", 5, 9, 0, {})
    metrics = Metrics(folder / "metrics.jsonl", 4, Tracker())
    module = Disturbed(disturbance)
    with Stop() as stop:
        stop_at_step = StopAtStep(stop, checkpoints)
        callbacks = [metrics, checkpoints, stop_at_step, CatchUpValidation(metrics.path)]
        trainer = make_trainer(callbacks, 12, strategy="ddp", devices=2, val_check_interval=7)
        try:
            trainer.fit(module, datamodule=StandinData(), ckpt_path=latest(folder / "checkpoints"))
        except StopRequested as stopped:
            print(f"stopped after {stopped.step} by {stop.signal_number}")
        except CheckpointError as error:
            print(f"failed: {'could not write' in str(error)}")
        else:
            print(f"finished, trained from {module.seen[0][0]}")


def main(folder: Path) -> None:
    train(folder, "signal")
    train(folder, "full disk")
    limit_file_size(resource.RLIM_INFINITY)
    train(folder, None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
