"""The delta rule's kernels as PyTorch operators: see `kernels.triton.ops`.

Two operators, `braid::delta_forward` and `braid::delta_backward`, opaque to compilers.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.state import LinearState
from kernels.triton.blocks import MOST_DELTA_KEYS
from kernels.triton.delta_launch import backward, corrections_type, forward
from kernels.triton.launch import CHUNK_TILES, TILE_TOKENS, Problem, operand_types


def delta_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor,
    *,
    scale: float,
    segments: Tensor | None,
    state: LinearState | None,
    chunk_size: int | None,
) -> tuple[Tensor, LinearState]:
    """Arguments as in `linear_attention`, already validated; chunks are whole tiles of tokens.

    Raises ValueError for more than MOST_DELTA_KEYS key channels.
    """
    if q.shape[3] > MOST_DELTA_KEYS:
        raise ValueError(
            f"backend='triton' keeps all key channels of a head on chip for the delta rule and "
            f"takes at most K = {MOST_DELTA_KEYS}, got {q.shape[3]}; use backend='torch'"
        )
    S, _, first = LinearState(None, None, None) if state is None else state
    chunk_tiles = CHUNK_TILES if chunk_size is None else -(-chunk_size // TILE_TOKENS)
    # A gradient summed over all tokens with both signs: rounded operands would dominate it.
    precise = decay is not None and decay.dim() == 1 and decay.requires_grad
    o, final, *_ = delta_forward(
        q, k, v, decay, beta, segments, S, first, scale, precise, chunk_tiles
    )
    return o, LinearState(final, None, None if segments is None else segments[:, -1])


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
    precise: bool,
    chunk_tiles: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `kernels.triton.delta_launch.forward`; first: [B] document of the incoming state."""
    p = Problem.of(q, k, v, decay, segments, first, scale, False, precise, chunk_tiles)
    return forward(p, beta, S)


@delta_forward.register_fake
def _(q, k, v, decay, beta, segments, S, first, scale, precise, chunk_tiles):
    batch, length, heads, key_width = q.shape
    rows, value_width = batch * heads, v.shape[3]
    tiles = -(-length // TILE_TOKENS)
    chunks = -(-tiles // chunk_tiles)
    pairs = (rows, tiles, TILE_TOKENS, TILE_TOKENS)
    kept = {"dtype": operand_types(q.dtype, precise)[0]}
    return (
        v.new_empty(v.shape),
        q.new_empty(batch, heads, key_width, value_width, dtype=torch.float32),
        v.new_empty(v.shape, **kept),
        v.new_empty(v.shape, **kept),
        q.new_empty(*pairs, dtype=corrections_type(q.dtype, precise)),
        q.new_empty(*pairs, **kept),
        q.new_empty(rows, chunks, key_width, value_width, **kept),
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
    precise: bool,
    chunk_tiles: int,
    with_decay: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `kernels.triton.delta_launch.backward`."""
    p = Problem.of(q, k, v, decay, segments, first, scale, False, precise, chunk_tiles)
    kept = (errors, writes, corrections, weights, states)
    return backward(p, beta, d_o, d_S, *kept, with_decay)


@delta_backward.register_fake
def _(
    d_o, d_S, q, k, v, decay, beta, segments, first, errors, writes, corrections, weights, states,
    scale, precise, chunk_tiles, with_decay,
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


def _setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, decay, beta, segments, _, first, *options = inputs
    _, _, *kept = output
    ctx.save_for_backward(q, k, v, decay, beta, segments, first, *kept)
    ctx.options = options
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*kept)


def _backward(ctx: Any, d_o: Tensor | None, d_S: Tensor | None, *_: Any):
    q, k, v, decay, beta, segments, first, *kept = ctx.saved_tensors
    needs = ctx.needs_input_grad
    d_o = torch.zeros_like(v) if d_o is None else d_o
    saved = (q, k, v, decay, beta, segments, first, *kept)
    d_q, d_k, d_v, d_decay, d_beta, d_initial = delta_backward(
        d_o, d_S, *saved, *ctx.options, needs[3]
    )
    gradients = (d_q, d_k, d_v, d_decay, d_beta, None, d_initial)
    return *(g if need else None for g, need in zip(gradients, needs, strict=False)), *(None,) * 4


delta_forward.register_autograd(_backward, setup_context=_setup)
