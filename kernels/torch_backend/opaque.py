"""The recurrences over chunks as one operator each way, for compilers to call instead of look into.

Their loops over halvings and chunks work in place. Unrolled into a compiler's graph of copies, they
took torch.compile minutes per block and gained nothing over the products that they are made of; and
each length would be a program of its own. The backward starts from the inputs again: what a
compiled block keeps is then inputs and outputs only.
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
    masks = (same, reach_in, reach_out, carry)
    _, outputs = _run(q, k, v, decay, beta, initial, masks, length, dtype, normalize)
    return outputs


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
    """Gradients of q, k, v, initial, then of beta and of the decay where there are any."""
    masks = (same, reach_in, reach_out, carry)
    ctx, _ = _run(q, k, v, decay, beta, initial, masks, length, dtype, normalize, with_decay)
    if beta is None:
        d_q, d_k, d_v, d_decay, d_initial, *_ = AdditiveChunks.backward(ctx, d_out, d_final)
        return [d_q, d_k, d_v, d_initial, *([d_decay] if with_decay else [])]
    d_q, d_k, d_v, d_decay, d_beta, d_initial, *_ = DeltaChunks.backward(ctx, d_out, d_final)
    return [d_q, d_k, d_v, d_initial, d_beta, *([d_decay] if with_decay else [])]


@_chunks_backward.register_fake
def _(
    d_out, d_final, q, k, v, decay, beta, initial, same, reach_in, reach_out, carry, length, dtype,
    normalize, with_decay,
):  # fmt: skip
    of = [q, k, v, initial, *([] if beta is None else [beta]), *([decay] if with_decay else [])]
    return [x.new_empty(x.shape) for x in of]


def _setup(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:10])
    ctx.options = inputs[10:]


def _backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
    decay, beta = ctx.saved_tensors[3:5]
    with_decay = decay is not None and ctx.needs_input_grad[3]
    d_q, d_k, d_v, d_initial, *others = _chunks_backward(
        d_out, d_final, *ctx.saved_tensors, *ctx.options, with_decay
    )
    d_beta = None if beta is None else others[0]
    d_decay = others[-1] if with_decay else None
    return d_q, d_k, d_v, d_decay, d_beta, d_initial, *(None,) * 7


_chunks.register_autograd(_backward, setup_context=_setup)


class _Context:
    """Stands in for autograd's context: keeps what a forward saves for its backward."""

    def __init__(self, with_decay: bool) -> None:
        self.needs_input_grad = (True, True, True, with_decay)
        self.saved_tensors: tuple[Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    initial: Tensor,
    masks: tuple[Tensor | None, ...],
    length: int,
    dtype: torch.dtype,
    normalize: bool,
    with_decay: bool = False,
) -> tuple[_Context, tuple[Tensor, Tensor]]:
    ctx = _Context(with_decay)
    with torch.autocast(q.device.type, enabled=False):
        if beta is None:
            options = (initial, length, dtype, normalize)
            return ctx, AdditiveChunks.forward(ctx, q, k, v, decay, *options, *masks)
        return ctx, DeltaChunks.forward(ctx, q, k, v, decay, beta, initial, length, *masks)
