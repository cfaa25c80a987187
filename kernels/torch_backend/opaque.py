"""The recurrences over rows as one operator each way, for compilers to call instead of look into.

Their loops over halvings and chunks work in place. Unrolled into a compiler's graph of copies, they
took torch.compile minutes per block and gained nothing over the products that they are made of; and
each number of chunks would be a program of its own. The backward starts from the inputs again: what
a compiled block keeps is then inputs and outputs only. Each operator spells out its tensors,
because torch reads the schema of an operator from its signature.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.torch_backend.additive import AdditiveChunks
from kernels.torch_backend.delta import DeltaChunks
from kernels.torch_backend.layout import Chunks, cut, from_chunks, to_chunks


@torch.library.custom_op("braid::rows", mutates_args=())
def opaque_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    initial: Tensor,
    segments: Tensor | None,
    first: Tensor | None,
    scale: float,
    chunk_size: int,
    dtype: torch.dtype,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, V] and final state, both in the working type.

    Args:
        q, k, v, decay, beta: as in `linear_attention`; v may have further columns.
        initial: the incoming state [B, H, K, V], in the working type.
        segments, first, scale, chunk_size: as in `cut`.
        dtype, normalize: as in `additive_chunks`.
    """
    chunks = cut(q, k, v, decay, beta, segments, first, scale, chunk_size, initial.dtype)
    _, (out, final) = _run(chunks, initial, q.shape[1], dtype, normalize, with_decay=False)
    return from_chunks(out, q.shape[1]).contiguous(), final


@opaque_rows.register_fake
def _(q, k, v, decay, beta, initial, segments, first, scale, chunk_size, dtype, normalize):
    return v.new_empty(v.shape, dtype=initial.dtype), initial.new_empty(initial.shape)


@torch.library.custom_op("braid::rows_backward", mutates_args=())
def _rows_backward(
    d_out: Tensor,
    d_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    initial: Tensor,
    segments: Tensor | None,
    first: Tensor | None,
    scale: float,
    chunk_size: int,
    dtype: torch.dtype,
    normalize: bool,
    with_decay: bool,
) -> list[Tensor]:
    """Gradients of `_learned`, in that order."""
    length, work = q.shape[1], initial.dtype
    chunks = cut(q, k, v, decay, beta, segments, first, scale, chunk_size, work)
    ctx, _ = _run(chunks, initial, length, dtype, normalize, with_decay)
    d_chunks = to_chunks(d_out, chunks.q.shape[3], work)
    gradients = _function(beta).backward(ctx, d_chunks, d_final)
    d_q, *others = (gradient for gradient in gradients if gradient is not None)
    learned = _learned(q, k, v, decay, beta, initial, with_decay)
    return [
        (from_chunks(gradient, length) if gradient.dim() > x.dim() else gradient)
        .to(x.dtype)
        .contiguous()
        for gradient, x in zip(
            (d_q * scale, *others), (x for x in learned if x is not None), strict=True
        )
    ]


@_rows_backward.register_fake
def _(
    d_out, d_final, q, k, v, decay, beta, initial, segments, first, scale, chunk_size, dtype,
    normalize, with_decay,
):  # fmt: skip
    learned = _learned(q, k, v, decay, beta, initial, with_decay)
    return [x.new_empty(x.shape) for x in learned if x is not None]


def _setup(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.options = inputs[8:]


def _backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
    with_decay = ctx.saved_tensors[3] is not None and ctx.needs_input_grad[3]
    gradients = iter(_rows_backward(d_out, d_final, *ctx.saved_tensors, *ctx.options, with_decay))
    learned = _learned(*ctx.saved_tensors[:6], with_decay)
    return *(None if x is None else next(gradients) for x in learned), *(None,) * 6


opaque_rows.register_autograd(_backward, setup_context=_setup)


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
    chunks: Chunks,
    initial: Tensor,
    length: int,
    dtype: torch.dtype,
    normalize: bool,
    with_decay: bool,
) -> tuple[_Context, tuple[Tensor, Tensor]]:
    """Outputs of the chunks and the final state; also what their backward needs."""
    ctx = _Context(with_decay)
    q, k, v, decay, beta, masks = chunks
    masks = (None,) * 4 if masks is None else masks
    if beta is None:
        arguments = (q, k, v, decay, initial, length, dtype, normalize, *masks)
    else:
        arguments = (q, k, v, decay, beta, initial, length, *masks)
    with torch.autocast(q.device.type, enabled=False):
        return ctx, _function(beta).forward(ctx, *arguments)
