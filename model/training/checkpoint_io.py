"""How one checkpoint file is written and read.

Lightning's own writer serialises into memory first and moves the bytes through the system's
temporary folder; here the file is written in place under a temporary name, flushed and renamed.
Only finite weights are written.
"""

import errno
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule

from model.training.architecture import canonical, fitted_state
from model.training.files import sync_folder

PARTIAL = ".partial"
"""Ending of a checkpoint that is being written."""

_ZIP_START = b"PK\x03\x04"
_KEYS = ("state_dict", "model_config")
_GIVE_A_CHECKPOINT = "Give a file that training wrote: RUN/checkpoints/step-*.ckpt"
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class CheckpointError(ValueError):
    """A checkpoint could not be written or read.

    A ValueError because the user can mend it: commands print it as one sentence, without the stack.
    """


class CheckpointFiles(CheckpointIO):
    """Writes and reads the checkpoints of `module` for Lightning.

    A failure to write is kept for `take_failure` instead of raised: only rank 0 writes, and it
    must still meet the other ranks in the barrier that follows.
    """

    def __init__(self, module: LightningModule, model_config: dict[str, Any]) -> None:
        self._module = module
        self._model_config = model_config
        self._failure: str | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        assert storage_options is None
        checkpoint["state_dict"] = {
            canonical(name): value for name, value in checkpoint["state_dict"].items()
        }
        # A module whose settings change while it trains gives those of this step itself.
        checkpoint.setdefault("model_config", self._model_config)
        try:
            self._check_finite(checkpoint)
            write(checkpoint, Path(path))
        except CheckpointError as error:
            self._failure = str(error)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        checkpoint = load(Path(path))
        checkpoint["state_dict"] = fitted_state(self._module, checkpoint, self._model_config)
        return checkpoint

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)

    def take_failure(self) -> str | None:
        """Why the last save failed, None when it did not; forgotten by asking."""
        failure, self._failure = self._failure, None
        return failure

    def _check_finite(self, checkpoint: dict[str, Any]) -> None:
        # Buffers may hold infinities on purpose (masks, running maxima); weights may not, and
        # neither may the optimizer's moments, which would make the next step's weights such.
        state = checkpoint["state_dict"]
        parameters = {
            canonical(name): state[canonical(name)]
            for name, _ in self._module.named_parameters(remove_duplicate=False)
        }
        moments = {
            f"optimizer state {key}": value
            for key, value in _tensors(checkpoint.get("optimizer_states", []))
        }
        bad = [
            name
            for name, value in (parameters | moments).items()
            if value.is_floating_point() and not bool(torch.isfinite(value).all())
        ]
        if bad:
            raise CheckpointError(
                f"not saved at step {checkpoint['global_step']}: {len(bad)} tensors hold NaN or "
                f"infinity ({', '.join(bad[:3])}{', ...' if len(bad) > 3 else ''})."
            )


def write(checkpoint: dict[str, Any], path: Path) -> None:
    """Writes `checkpoint` to `path` so that `path` never holds an incomplete file.

    Raises:
        CheckpointError: the disk (or quota, or file size limit) does not hold it; nothing of it
            is left behind.
    """
    temporary = path.with_name(path.name + PARTIAL)
    needed = sum(value.numel() * value.element_size() for _, value in _tensors(checkpoint))
    free = shutil.disk_usage(path.parent).free
    try:
        if free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(temporary, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        # torch reports what its zip writer meets as a RuntimeError, with the cause in the chain.
        cause = error if isinstance(error, OSError) else error.__context__ or error
        full = isinstance(cause, OSError) and cause.errno in _NO_ROOM
        advice = (
            "Free space there (run.root), or keep fewer checkpoints (trainer.keep_last, "
            "trainer.keep_every)"
            if full
            else "Make the folder writable (run.root)"
        )
        raise CheckpointError(
            f"could not write {path}: {cause}. It needs about {needed / 1e6:.1f} MB, "
            f"{free / 1e6:.1f} MB were free. {advice}, then give the same command again."
        ) from error


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU.

    Only tensors and plain Python values are read, no pickled code is run.

    Raises:
        CheckpointError: the file is missing, cut off, damaged or no checkpoint of a run.
    """
    path = Path(path)
    check_readable(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever the contents make the reader raise: one clear error
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path} cannot be read ({reason}). {_advice(path)}") from error
    missing = [key for key in _KEYS if not isinstance(checkpoint, dict) or key not in checkpoint]
    if missing:
        raise CheckpointError(
            f"{path} is a file of torch, but no checkpoint of a run: it has no "
            f"{' and no '.join(missing)}. {_GIVE_A_CHECKPOINT}"
        )
    return checkpoint


def check_readable(path: Path) -> None:
    """Raises CheckpointError if a file is missing or `damage` finds something."""
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    problem = damage(path)
    if problem is not None:
        raise CheckpointError(f"{path} {problem}. {_advice(path)}")


def damage(path: Path) -> str | None:
    """What is wrong with an existing file as a checkpoint, by its two ends; None: nothing.

    A checkpoint is a zip archive, whose beginning is fixed and whose directory comes last.
    """
    with open(path, "rb") as file:
        start = file.read(len(_ZIP_START))
    if not _ZIP_START.startswith(start):
        return "is no checkpoint"
    if not zipfile.is_zipfile(path):
        return f"is cut off ({path.stat().st_size} bytes are left)"
    return None


def is_complete(path: Path) -> bool:
    """Whether there is a file, and it was written to its end."""
    return path.is_file() and damage(path) is None


def _advice(path: Path) -> str:
    if not path.name.startswith("step-"):
        return _GIVE_A_CHECKPOINT
    return (
        f"Copy it again, or remove it and the newest complete checkpoint in {path.parent} is used"
    )


def _tensors(value: Any, key: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _tensors(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{key}.{index}" if key else str(index))
