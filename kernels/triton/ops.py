"""The kernels as PyTorch operators: with fakes, autograd and the `triton` backend's entry point.

Two operators, `braid::additive_forward` and `braid::additive_backward`, opaque to compilers, so
that a block traces through them without a graph break. Those of the delta rule: see `delta_ops`;
calls of few tokens without gradients: see `decode_op`.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.derivatives import refuse_second_derivative
from kernels.state import LinearState
from kernels.triton.decode_op import decode, decodes
from kernels.triton.delta_ops import delta_forward
from kernels.triton.launch import (
    CHUNK_TILES,
    TILE_TOKENS,
    Problem,
    backward,
    forward,
    operand_types,
)


def triton_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    *,
    scale: float,
    normalize: bool,
    segments: Tensor | None,
    state: LinearState | None,
    chunk_size: int | None,
) -> tuple[Tensor, LinearState]:
    """Arguments as in `linear_attention`, already validated; chunks are whole tiles of tokens."""
    S, z, first = LinearState(None, None, None) if state is None else state
    chunk_tiles = CHUNK_TILES if chunk_size is None else -(-chunk_size // TILE_TOKENS)
    last = None if segments is None else segments[:, -1]
    if decodes(q.shape[1], q, k, v, decay, beta, S, z):
        o, S, z = decode(q, k, v, decay, beta, segments, S, z, first, scale, normalize)
        return o, LinearState(S, z if normalize else None, last)
    if beta is not None:
        o, final, *_ = delta_forward(q, k, v, decay, beta, segments, S, first, scale, chunk_tiles)
        return o, LinearState(final, None, last)
    # A gradient summed over all tokens with both signs: rounded operands would dominate it.
    precise = decay is not None and decay.dim() == 1 and decay.requires_grad
    o, final, final_z, *_ = additive_forward(
        q, k, v, decay, segments, S, z, first, scale, normalize, precise, chunk_tiles
    )
    return o.to(v.dtype), LinearState(final, final_z if normalize else None, last)


@torch.library.custom_op("braid::additive_forward", mutates_args=())
def additive_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    segments: Tensor | None,
    S: Tensor | None,
    z: Tensor | None,
    first: Tensor | None,
    scale: float,
    normalize: bool,
    precise: bool,
    chunk_tiles: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `kernels.triton.launch.forward`; first: [B] document number of the incoming state."""
    p = Problem.of(q, k, v, decay, segments, first, scale, normalize, precise, chunk_tiles)
    return forward(p, S, z)


@additive_forward.register_fake
def _(q, k, v, decay, segments, S, z, first, scale, normalize, precise, chunk_tiles):
    batch, length, heads, key_width = q.shape
    chunks = -(-length // (TILE_TOKENS * chunk_tiles))
    value_width = v.shape[3]
    states = batch * heads * chunks
    dtype, _ = operand_types(v.dtype, precise)
    channels = key_width if decay is not None and decay.dim() == 4 else 1

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return q.new_empty(shape, dtype=dtype)

    return (
        new(*v.shape, dtype=torch.float32 if normalize else v.dtype),
        new(batch, heads, key_width, value_width),
        new(batch, heads, key_width) if normalize else new(0),
        new(batch, length, heads) if normalize else new(0),
        new(states, key_width, value_width, dtype=dtype),
        new(states, key_width) if normalize else new(0),
        new(states, channels),
    )


@torch.library.custom_op("braid::additive_backward", mutates_args=())
def additive_backward(
    d_o: Tensor,
    d_S: Tensor | None,
    d_z: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    segments: Tensor | None,
    first: Tensor | None,
    o: Tensor,
    denominators: Tensor,
    states: Tensor,
    sums: Tensor,
    totals: Tensor,
    scale: float,
    normalize: bool,
    precise: bool,
    chunk_tiles: int,
    with_decay: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `kernels.triton.launch.backward`."""
    p = Problem.of(q, k, v, decay, segments, first, scale, normalize, precise, chunk_tiles)
    return backward(p, d_o, d_S, d_z, o, denominators, states, sums, totals, with_decay)


@additive_backward.register_fake
def _(
    d_o, d_S, d_z, q, k, v, decay, segments, first, o, denominators, states, sums, totals,
    scale, normalize, precise, chunk_tiles, with_decay,
):  # fmt: skip
    batch, _, heads, key_width = q.shape
    work = {"dtype": torch.float32}
    d_decay = q.new_empty(decay.shape, **work) if with_decay and decay is not None else None
    return (
        q.new_empty(q.shape),
        q.new_empty(q.shape),
        v.new_empty(v.shape),
        q.new_empty(0, **work) if d_decay is None else d_decay,
        q.new_empty(batch, heads, key_width, v.shape[3], **work),
        q.new_empty((batch, heads, key_width) if normalize else 0, **work),
    )


def _setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, decay, segments, _, _, first, *options = inputs
    o, _, _, *kept = output
    ctx.save_for_backward(q, k, v, decay, segments, first, o, *kept)
    ctx.options = options
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*kept)


def _backward(ctx: Any, d_o: Tensor | None, d_S: Tensor | None, d_z: Tensor | None, *_: Any):
    refuse_second_derivative("linear_attention", ", or backend='reference'")
    q, k, v, decay, segments, first, o, *kept = ctx.saved_tensors
    needs = ctx.needs_input_grad
    normalize = ctx.options[1]
    d_q, d_k, d_v, d_decay, d_initial, d_initial_z = additive_backward(
        torch.zeros_like(o) if d_o is None else d_o,
        d_S,
        d_z if normalize else None,
        q, k, v, decay, segments, first, o, *kept, *ctx.options, needs[3],
    )  # fmt: skip
    gradients = (d_q, d_k, d_v, d_decay, None, d_initial, d_initial_z)
    return *(g if need else None for g, need in zip(gradients, needs, strict=False)), *(None,) * 5


additive_forward.register_autograd(_backward, setup_context=_setup)
