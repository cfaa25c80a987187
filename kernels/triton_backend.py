"""The door to the Triton kernels: imports them on first use, where triton is installed.

Machines without triton (macOS, arm) still run everything else.
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from kernels.state import LinearState
from kernels.triton.blocks import MOST_DELTA_KEYS


def triton_attention(*arguments: Any, **options: Any) -> tuple[Tensor, LinearState]:
    """See `kernels.triton.ops.triton_attention`."""
    from kernels.triton.ops import triton_attention

    return triton_attention(*arguments, **options)


def refusal(q: Tensor, beta: Tensor | None) -> str | None:
    """Why the Triton kernels cannot take these inputs; None if they can."""
    if q.dtype == torch.float64:
        return "has no float64; use backend='torch' or 'reference'"
    if beta is not None and q.shape[3] > MOST_DELTA_KEYS:
        return (
            f"keeps the state of a head's keys on chip for the delta rule (beta) and takes at most "
            f"K = {MOST_DELTA_KEYS}, got {q.shape[3]}; use backend='torch' or 'auto'"
        )
    if torch.compiler.is_compiling():
        return None  # compilers cannot look at the machine, and need triton themselves
    reason = unavailable(q.device.type)
    return None if reason is None else f"{reason}, or use backend='torch'"


def unavailable(device_type: str) -> str | None:
    """Why no Triton kernel can run on tensors of this device; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "needs the triton package, which is not here: install it"
    if device_type == "cpu" and not _interpreted():
        return (
            "runs on GPUs, and the tensors lie on the CPU: set TRITON_INTERPRET=1 before Python "
            "starts to run the kernels in Triton's slow interpreter"
        )
    return None


def takes_triton(backend: str, x: Tensor, reason: str | None = None) -> bool:
    """Whether the call of a layer with input x goes to the kernels, as in `linear_attention`.

    Args:
        backend: "auto", "torch" or "triton".
        reason: why the layer's kernels cannot take the call whatever the machine; None if they can.

    Raises:
        ValueError: an unknown backend, or "triton" where it cannot run.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend={backend!r} is unknown; use one of ['auto', 'torch', 'triton']")
    if backend == "torch" or (backend == "auto" and x.device.type != "cuda"):
        return False
    if x.dtype == torch.float64:
        reason = "has no float64; use backend='torch'"
    reason = reason or refusal(x, None)
    if backend == "triton" and reason is not None:
        raise ValueError(f"backend='triton' {reason}")
    return reason is None


def _interpreted() -> bool:
    import triton

    return triton.knobs.runtime.interpret
