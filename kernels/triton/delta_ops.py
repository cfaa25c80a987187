"""The delta rule's kernels as PyTorch operators, for the entry point in `kernels.triton.ops`.

Two operators, `braid::delta_forward` and `braid::delta_backward`, opaque to compilers.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.derivatives import refuse_second_derivative
from kernels.triton.delta_launch import backward, forward
from kernels.triton.launch import TILE_TOKENS, Problem


@torch.library.custom_op("braid::delta_forward", mutates_args=())
def delta_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor,
    segments: Tensor | None,
    S: Tensor | None,
    first: Tensor | None,
    scale: float,
    chunk_tiles: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `kernels.triton.delta_launch.forward`; first: [B] document of the incoming state."""
    p = _problem(q, k, v, decay, segments, first, scale, chunk_tiles)
    return forward(p, beta, S)


@delta_forward.register_fake
def _(q, k, v, decay, beta, segments, S, first, scale, chunk_tiles):
    batch, length, heads, key_width = q.shape
    rows, value_width = batch * heads, v.shape[3]
    tiles = -(-length // TILE_TOKENS)
    chunks = -(-tiles // chunk_tiles)
    pairs = (rows * tiles, TILE_TOKENS, TILE_TOKENS)
    work = {"dtype": torch.float32}
    return (
        v.new_empty(v.shape),
        q.new_empty(batch, heads, key_width, value_width, **work),
        v.new_empty(v.shape, **work),
        v.new_empty(v.shape, **work),
        q.new_empty(*pairs, **work),
        q.new_empty(*pairs, **work),
        q.new_empty(rows * chunks, key_width, value_width, **work),
    )


@torch.library.custom_op("braid::delta_backward", mutates_args=())
def delta_backward(
    d_o: Tensor,
    d_S: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor,
    segments: Tensor | None,
    first: Tensor | None,
    errors: Tensor,
    writes: Tensor,
    corrections: Tensor,
    weights: Tensor,
    states: Tensor,
    scale: float,
    chunk_tiles: int,
    with_decay: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `kernels.triton.delta_launch.backward`."""
    p = _problem(q, k, v, decay, segments, first, scale, chunk_tiles)
    kept = (errors, writes, corrections, weights, states)
    return backward(p, beta, d_o, d_S, *kept, with_decay)


@delta_backward.register_fake
def _(
    d_o, d_S, q, k, v, decay, beta, segments, first, errors, writes, corrections, weights, states,
    scale, chunk_tiles, with_decay,
):  # fmt: skip
    batch, _, heads, key_width = q.shape
    work = {"dtype": torch.float32}
    return (
        q.new_empty(q.shape),
        q.new_empty(q.shape),
        v.new_empty(v.shape),
        q.new_empty(decay.shape if with_decay and decay is not None else 0, **work),
        q.new_empty(beta.shape, **work),
        q.new_empty(batch, heads, key_width, v.shape[3], **work),
    )


def _problem(q, k, v, decay, segments, first, scale, chunk_tiles) -> Problem:
    return Problem.of(q, k, v, decay, segments, first, scale, False, False, chunk_tiles, delta=True)


def _setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, decay, beta, segments, _, first, *options = inputs
    _, _, *kept = output
    ctx.save_for_backward(q, k, v, decay, beta, segments, first, *kept)
    ctx.options = options
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*kept)


def _backward(ctx: Any, d_o: Tensor | None, d_S: Tensor | None, *_: Any):
    refuse_second_derivative("linear_attention", ", or backend='reference'")
    q, k, v, decay, beta, segments, first, *kept = ctx.saved_tensors
    needs = ctx.needs_input_grad
    d_o = torch.zeros_like(v) if d_o is None else d_o
    saved = (q, k, v, decay, beta, segments, first, *kept)
    d_q, d_k, d_v, d_decay, d_beta, d_initial = delta_backward(
        d_o, d_S, *saved, *ctx.options, needs[3]
    )
    gradients = (d_q, d_k, d_v, d_decay, d_beta, None, d_initial)
    return *(g if need else None for g, need in zip(gradients, needs, strict=False)), *(None,) * 3


delta_forward.register_autograd(_backward, setup_context=_setup)
