"""One of two ranks, started by test_two_ranks.py: prints what it ends its trainings with.

python two_ranks.py FOLDER
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import torch
from standin import Standin, StandinData, make_trainer

import model.training.checkpoints
from model.training.catch_up import CatchUpValidation
from model.training.checkpoint_io import CheckpointError
from model.training.checkpoints import Checkpoints, latest
from model.training.files import write_atomic
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


def train(
    folder: Path, disturbance: Literal["signal", "full disk", None], start: Path | None = None
) -> None:
    """Trains from `start`, or else the newest checkpoint, to step 12."""
    checkpoints = Checkpoints(folder / "checkpoints", 5, 9, 0, {})
    metrics = Metrics(folder / "metrics.jsonl", 4, Tracker())
    module = Disturbed(disturbance)
    with Stop() as stop:
        stop_at_step = StopAtStep(stop, checkpoints)
        callbacks = [metrics, checkpoints, stop_at_step, CatchUpValidation(metrics.path)]
        trainer = make_trainer(callbacks, 12, strategy="ddp", devices=2, val_check_interval=7)
        try:
            start = start or latest(folder / "checkpoints")
            trainer.fit(module, datamodule=StandinData(), ckpt_path=start)
        except StopRequested as stopped:
            print(f"stopped after {stopped.step} by {stop.signal_number}")
        except CheckpointError as error:
            print(str(error).replace(str(folder), "FOLDER").split(":")[0])
        else:
            print(f"finished, trained from {module.seen[0][0]}")


def write_slowly(path: Path, text: str) -> None:
    time.sleep(2)  # long enough for another rank to be at its next training
    write_atomic(path, text)


def main(folder: Path) -> None:
    model.training.checkpoints.write_atomic = write_slowly
    train(folder, "signal")
    train(folder, "full disk")
    limit_file_size(resource.RLIM_INFINITY)
    other = {"0": None, "1": folder / "checkpoints/step-00000005.ckpt"}
    train(folder, None, other[os.environ["RANK"]])
    train(folder, None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
