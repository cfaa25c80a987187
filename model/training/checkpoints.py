"""Checkpoints of a run: written whole or not at all, found again, and thinned out.

    checkpoints/step-00000200.ckpt   one optimizer step's complete training state
    checkpoints/latest               the name of the newest complete checkpoint
    checkpoints/best                 JSON: the name and validation value of the best checkpoint

A checkpoint is written under a temporary name, flushed to the disk and renamed, so a file named
`step-*.ckpt` is complete; the pointer is rewritten after that and older files go last. What is
written and read goes through `checkpoint_io.py`.
"""

import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from conf.records import read_record
from model.training.checkpoint_io import (
    PARTIAL,
    CheckpointError,
    CheckpointFiles,
    damage,
    is_complete,
)
from model.training.files import sync_folder, write_atomic

LATEST = "latest"
BEST = "best"
METRIC = "val_bits_per_byte"
PROGRESS = "BRAID_PROGRESS"
"""Environment variable with a file to write each saved step into: a batch script that sees it
unchanged after a failure knows that another start would fail as well."""
_WRITTEN_AGAIN = "remove it; the next validation writes it again"


class Checkpoints(Callback):
    """Saves every `every_steps` optimizer steps, at the end, and when validation improves.

    Place it after the callbacks that write the step's metrics. `save` may be called at any time by
    all ranks (a stop request does); a step is never saved twice.

    Args:
        folder: the run's `checkpoints` folder; created when missing.
        every_steps: optimizer steps between two checkpoints.
        keep_last: how many of the newest checkpoints are kept (at least 1).
        keep_every: checkpoints at multiples of this step are kept for good; 0: none.
        model_config: the network's configuration as plain dicts, stored in each checkpoint under
            "model_config"; `architecture.py` names its differences on loading.
    """

    def __init__(
        self,
        folder: Path,
        every_steps: int,
        keep_last: int,
        keep_every: int,
        model_config: dict[str, Any],
    ) -> None:
        if every_steps < 1 or keep_last < 1 or keep_every < 0:
            raise ValueError(
                f"every_steps={every_steps} and keep_last={keep_last} must be at least 1, "
                f"keep_every={keep_every} at least 0"
            )
        self.folder = Path(folder)
        self.every_steps = every_steps
        self.keep_last = keep_last
        self.keep_every = keep_every
        self.model_config = model_config
        self._saved_step: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            for partial in self.folder.glob(f"*{PARTIAL}"):  # left by a killed process
                partial.unlink()
        self._files = CheckpointFiles(pl_module, self.model_config)
        trainer.strategy.checkpoint_io = self._files

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # A run continued from its own checkpoint already has that step's file.
        if is_complete(self.path(checkpoint["global_step"])):
            self._saved_step = checkpoint["global_step"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Each rank reads the pointer itself; where they saw different files (a shared file system
        # that lags), their collectives would wait for each other for ever.
        if trainer.world_size == 1:
            return
        step = trainer.global_step
        last = torch.tensor(step, device=trainer.strategy.root_device)
        first = -trainer.strategy.reduce(-last, reduce_op="max")
        last = trainer.strategy.reduce(last, reduce_op="max")
        if first != last:
            raise CheckpointError(
                f"rank {trainer.global_rank} continues from step {step}, others from step "
                f"{int(first if step == last else last)}: not all ranks see the same files in "
                f"{self.folder}. run.root must be a folder that all nodes share; if it is, give "
                "the same command again"
            )

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step % self.every_steps == 0:
            self.save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(METRIC)
        if trainer.sanity_checking or value is None:
            return
        value = float(value)
        best = read_best(self.folder)
        improved = math.isfinite(value) and (best is None or value < best[METRIC])
        # Ranks must agree because saving is collective, and only rank 0 sees its own files surely.
        if trainer.strategy.broadcast(improved):
            self.save(trainer)
            if trainer.is_global_zero:
                step = trainer.global_step
                entry = {"checkpoint": self.path(step).name, "step": step, METRIC: value}
                write_atomic(self.folder / BEST, json.dumps(entry) + "\n")
                self._thin_out()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def path(self, step: int) -> Path:
        """Where the checkpoint of an optimizer step lies."""
        return self.folder / f"step-{step:08d}.ckpt"

    def save(self, trainer: Trainer) -> Path:
        """Saves the current step unless that was done; called by all ranks alike.

        Raises:
            CheckpointError: on all ranks, when the weights are not finite or the file could not be
                written; earlier checkpoints and the pointer are as they were.
        """
        step = trainer.global_step
        path = self.path(step)
        if step == self._saved_step:
            return path
        trainer.save_checkpoint(path, weights_only=False)
        # Rank 0 writes; the others must not wait in a barrier for a rank that has raised. Nor may
        # they go on before the pointer is there: they could continue from the one before.
        failure = trainer.strategy.broadcast(self._finish_save(trainer, path))
        if failure is not None:
            usable = trainer.strategy.broadcast(latest(self.folder))
            raise CheckpointError(f"{failure}{_what_is_left(usable)}")
        self._saved_step = step
        if trainer.is_global_zero:
            self._thin_out()
        return path

    def _finish_save(self, trainer: Trainer, path: Path) -> str | None:
        """Writes the pointer on rank 0; returns why the checkpoint is not saved, None if it is."""
        failure = self._files.take_failure()
        if failure is None and trainer.is_global_zero:
            try:
                write_atomic(self.folder / LATEST, path.name + "\n")
                if progress := os.environ.get(PROGRESS):
                    write_atomic(Path(progress), f"{step_of(path)}\n")
            except OSError as error:
                return f"could not write {error.filename}: {error}."
        return failure

    def _thin_out(self) -> None:
        steps = [step_of(path) for path in files(self.folder)]
        keep = set(steps[-self.keep_last :])
        if self.keep_every:
            keep.update(step for step in steps if step % self.keep_every == 0)
        # A run continued from an older checkpoint has newer files of the abandoned branch.
        keep.add(self._saved_step)
        best = read_best(self.folder)
        if best is not None:
            keep.add(best["step"])
        for step in steps:
            if step not in keep:
                self.path(step).unlink()
        sync_folder(self.folder)


def files(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, damaged ones too, by step; copies under other names are none."""
    paths = Path(folder).glob("step-*.ckpt")
    return sorted((p for p in paths if re.fullmatch(r"step-\d+\.ckpt", p.name)), key=step_of)


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint in `folder`, or None.

    It is the one that the pointer names. When the pointer is missing, or names a file that is
    missing or damaged, it is the complete file with the highest step; a line on standard error
    names what was passed over.
    """
    folder = Path(folder)
    pointer = folder / LATEST
    named = None
    if pointer.is_file():
        named = folder / pointer.read_text(encoding="utf-8").strip()
        problem = damage(named) if named.is_file() else "is missing"
        if problem is None:
            return named
        _warn(f"{pointer} names {named.name}, but that file {problem}")
    for path in reversed(files(folder)):
        problem = damage(path)
        if problem is None:
            return path
        if path != named:
            _warn(f"passed over {path}: the file {problem}")
    return None


def resumable(folder: Path) -> bool:
    """Whether there is a checkpoint to continue from. Unlike `latest` it prints nothing.

    Raises:
        CheckpointError: there are checkpoints but no complete one, or `best` is damaged.
    """
    problems = {path.name: damage(path) for path in files(folder)}
    if problems and None not in problems.values():
        listing = "; ".join(f"{name} {problem}" for name, problem in problems.items())
        raise CheckpointError(
            f"none of the checkpoints in {folder} can be read ({listing}), so the run cannot be "
            "continued. Restore one, or start a new run: run.name=NAME"
        )
    read_best(folder)
    return bool(problems)


def best(folder: Path) -> Path | None:
    """The checkpoint with the lowest validation bits per byte, or None."""
    entry = read_best(folder)
    return None if entry is None else Path(folder) / entry["checkpoint"]


def read_best(folder: Path) -> dict[str, Any] | None:
    """The `best` pointer (checkpoint, step, val_bits_per_byte), None while there is none."""
    pointer = Path(folder) / BEST
    if not pointer.is_file():
        return None
    try:
        entry = read_record(pointer, ["checkpoint", "step", METRIC], _WRITTEN_AGAIN)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    return entry if (Path(folder) / entry["checkpoint"]).is_file() else None


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def step_of(path: Path) -> int:
    """The optimizer step in a checkpoint's name."""
    return int(path.stem.removeprefix("step-"))


def _what_is_left(usable: Path | None) -> str:
    if usable is None:
        return " There is no earlier checkpoint."
    return (
        f" {usable} is untouched and loadable: the same command continues from step "
        f"{step_of(usable)}."
    )
