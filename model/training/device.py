"""Where and in which precision to train, decided by looking at the machine."""

import os
import shutil
import time
from typing import Any

import torch

from model.training.config import TrainerSettings


def resolve(
    trainer: TrainerSettings, device: torch.device, saved: dict[str, Any] | None
) -> TrainerSettings:
    """Replaces `auto` by what it means here; a continued run keeps what it started with.

    Args:
        saved: the `trainer` section of the run that is continued, None for a new one.
    """
    precision, compiled = trainer.precision, trainer.compile
    if saved is not None:
        precision = saved["precision"] if precision == "auto" else precision
        compiled = saved["compile"] if compiled == "auto" else compiled
    return trainer.model_copy(
        update={
            "precision": pick_precision(precision, device),
            "compile": "on" if pick_compile(compiled, device) else "off",
        }
    )


def pick_device(name: str) -> torch.device:
    """The device that `auto`, `cpu` or `cuda` means here.

    Raises:
        ValueError: CUDA is asked for and there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda: torch sees no CUDA device here; use device=auto or cpu")
    return torch.device(name)


def pick_precision(name: str, device: torch.device) -> str:
    """`auto` becomes bf16-mixed where bfloat16 matrix products are measured faster, else 32-true.

    Processors without bfloat16 units emulate it, a hundred times slower than float32.
    """
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "32-true"
    slow = _product_seconds(torch.float32)
    return "bf16-mixed" if _product_seconds(torch.bfloat16) < 0.8 * slow else "32-true"


def pick_compile(name: str, device: torch.device) -> bool:
    """Whether blocks are compiled: `auto` says yes on CUDA and no on a CPU.

    Raises:
        ValueError: compilation for a CPU is asked for and no C++ compiler is installed.
    """
    if name == "on" and device.type == "cpu" and not shutil.which(_compiler()):
        raise ValueError(
            f"trainer.compile=on: torch.compile needs a C++ compiler on a CPU, and {_compiler()!r} "
            "is not on the PATH; install one (Debian: apt-get install g++), name it in $CXX, or "
            "use trainer.compile=off"
        )
    return name == "on" or (name == "auto" and device.type == "cuda")


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which Lightning's `precision` runs a forward pass, for use outside of it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")


def _product_seconds(dtype: torch.dtype) -> float:
    x = torch.ones(256, 256, dtype=dtype)
    times = []
    for _ in range(4):  # the first warms up
        start = time.perf_counter()
        x @ x
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _compiler() -> str:
    return os.environ.get("CXX", "g++")
