"""The recurrences over chunks as one operator each way, for compilers to call instead of look into.

Their loops over halvings and chunks work in place. Unrolled into a compiler's graph of copies, they
took torch.compile minutes per block and gained nothing over the products that they are made of; and
each length would be a program of its own. The backward starts from the inputs again: what a
compiled block keeps is then inputs and outputs only. Each operator spells out its tensors, because
torch reads the schema of an operator from its signature.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.torch_backend.additive import AdditiveChunks
from kernels.torch_backend.delta import DeltaChunks
from kernels.torch_backend.layout import DocumentMasks


def opaque_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    initial: Tensor,
    length: int,
    masks: DocumentMasks | None,
    dtype: torch.dtype,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """As `additive_chunks`, or with beta as `delta_chunks`."""
    masks = (None,) * 4 if masks is None else masks
    return _chunks(q, k, v, decay, beta, initial, *masks, length, dtype, normalize)


@torch.library.custom_op("braid::chunks", mutates_args=())
def _chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    initial: Tensor,
    same: Tensor | None,
    reach_in: Tensor | None,
    reach_out: Tensor | None,
    carry: Tensor | None,
    length: int,
    dtype: torch.dtype,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    tensors = (q, k, v, decay, beta, initial, same, reach_in, reach_out, carry)
    return _run(tensors, length, dtype, normalize, with_decay=False)[1]


@_chunks.register_fake
def _(q, k, v, decay, beta, initial, same, reach_in, reach_out, carry, length, dtype, normalize):
    return torch.empty_like(v), torch.empty_like(initial)


@torch.library.custom_op("braid::chunks_backward", mutates_args=())
def _chunks_backward(
    d_out: Tensor,
    d_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    initial: Tensor,
    same: Tensor | None,
    reach_in: Tensor | None,
    reach_out: Tensor | None,
    carry: Tensor | None,
    length: int,
    dtype: torch.dtype,
    normalize: bool,
    with_decay: bool,
) -> list[Tensor]:
    """Gradients of `_learned`, in that order."""
    tensors = (q, k, v, decay, beta, initial, same, reach_in, reach_out, carry)
    ctx, _ = _run(tensors, length, dtype, normalize, with_decay)
    gradients = _function(beta).backward(ctx, d_out, d_final)
    return [gradient for gradient in gradients if gradient is not None]


@_chunks_backward.register_fake
def _(
    d_out, d_final, q, k, v, decay, beta, initial, same, reach_in, reach_out, carry, length, dtype,
    normalize, with_decay,
):  # fmt: skip
    learned = _learned(q, k, v, decay, beta, initial, with_decay)
    return [x.new_empty(x.shape) for x in learned if x is not None]


def _setup(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:10])
    ctx.options = inputs[10:]


def _backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
    with_decay = ctx.saved_tensors[3] is not None and ctx.needs_input_grad[3]
    gradients = iter(_chunks_backward(d_out, d_final, *ctx.saved_tensors, *ctx.options, with_decay))
    learned = _learned(*ctx.saved_tensors[:6], with_decay)
    return *(None if x is None else next(gradients) for x in learned), *(None,) * 7


_chunks.register_autograd(_backward, setup_context=_setup)


class _Context:
    """Stands in for autograd's context: keeps what a forward saves for its backward."""

    def __init__(self, with_decay: bool) -> None:
        self.needs_input_grad = (True, True, True, with_decay)
        self.saved_tensors: tuple[Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


def _learned(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, beta: Tensor | None, initial: Tensor,
    with_decay: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """What gets a gradient, in the order of the inputs; None for what gets none."""
    return q, k, v, decay if with_decay else None, beta, initial


def _function(beta: Tensor | None) -> type[torch.autograd.Function]:
    return AdditiveChunks if beta is None else DeltaChunks


def _run(
    tensors: tuple[Tensor | None, ...],
    length: int,
    dtype: torch.dtype,
    normalize: bool,
    with_decay: bool,
) -> tuple[_Context, tuple[Tensor, Tensor]]:
    """Forward of the ten tensors that the operators take; also what its backward needs."""
    ctx = _Context(with_decay)
    q, k, v, decay, beta, initial, *masks = tensors
    if beta is None:
        arguments = (q, k, v, decay, initial, length, dtype, normalize, *masks)
    else:
        arguments = (q, k, v, decay, beta, initial, length, *masks)
    with torch.autocast(q.device.type, enabled=False):
        return ctx, _function(beta).forward(ctx, *arguments)
