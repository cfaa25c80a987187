"""Launches of the delta rule's kernels: plain functions, no autograd.

Forward: the triangular systems of all tiles, what each token writes (tile after tile), outputs.
Backward: gradients of the writes (tile after tile, from the end), then of queries, keys and decays.
Outputs and the last step are the additive kernels with writes in the place of values.
"""

from dataclasses import replace

import torch
import triton
from torch import Tensor

from kernels.triton import delta_states, solve
from kernels.triton.launch import (
    Problem,
    launch_key_query_gradients,
    launch_outputs,
    operand_types,
    rows_contiguous,
    state_or_zeros,
)


def forward(
    p: Problem, beta: Tensor, S: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(o, final S, errors, writes, corrections, weights, states): see `backward`."""
    batch, length, heads, key_width = p.q.shape
    value_width = p.v.shape[3]
    decay, decay_strides = p.gates()
    segments, first, segment_strides = p.documents()
    constants = p.constants()
    work = {"dtype": torch.float32}

    corrections = p.pairs()
    options = p.options("corrections")
    del options["BV"]
    of_keys = {name: value for name, value in constants.items() if name != "V"}
    _, exact = operand_types(torch.float32)
    p.launch(
        solve.corrections, p.rows * p.tiles,
        p.k, beta, decay, segments, corrections,
        *p.k.stride()[:3], *beta.stride(), *decay_strides, *segment_strides, length, heads,
        EXACT=exact, **of_keys, **options,
    )  # fmt: skip

    initial = state_or_zeros(p, S, (batch, heads, key_width, value_width))
    final = torch.empty_like(initial)
    states = p.q.new_empty(p.rows * p.num_chunks, key_width, value_width, **work)
    errors, writes = (p.v.new_empty(p.v.shape, **work) for _ in range(2))
    options = p.options("delta_states")
    p.launch(
        delta_states.delta_states, p.rows * triton.cdiv(value_width, options["BV"]),
        p.k, p.v, beta, decay, segments, first, corrections, initial, states, final, errors, writes,
        *p.k.stride()[:3], *p.v.stride()[:3], *beta.stride(), *decay_strides, *segment_strides,
        *p.lengths()[1:], **constants, **options,
    )  # fmt: skip

    written = replace(p, v=writes)
    o, _, weights = launch_outputs(written, states, p.q.new_empty(0))
    return o, final, errors, writes, corrections, weights, states


def backward(
    p: Problem,
    beta: Tensor,
    d_o: Tensor,
    d_S: Tensor | None,
    errors: Tensor,
    writes: Tensor,
    corrections: Tensor,
    weights: Tensor,
    states: Tensor,
    with_decay: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(d_q, d_k, d_v, d_decay, d_beta, gradient of the incoming S).

    errors, writes: [B, T, H, V], v minus what keys read, and beta times that.
    corrections, weights: [B * H * tiles, TILE, TILE], of keys for keys and of keys for queries.
    states: [B * H * chunks, K, V], before each chunk.
    """
    batch, length, heads, key_width = p.q.shape
    value_width = p.v.shape[3]
    d_o = rows_contiguous(d_o)
    decay, decay_strides = p.gates()
    segments, first, segment_strides = p.documents()
    d_final = state_or_zeros(p, d_S, (batch, heads, key_width, value_width))
    d_initial = torch.empty_like(d_final)
    d_states = torch.empty_like(states)
    d_v = p.v.new_empty(p.v.shape, dtype=torch.float32)
    options = p.options("delta_state_gradients")
    value_blocks = triton.cdiv(value_width, options["BV"])
    d_beta = beta.new_empty(value_blocks, batch, length, heads)
    scale, *lengths = p.lengths()
    p.launch(
        delta_states.delta_state_gradients, p.rows * value_blocks,
        p.q, p.k, beta, decay, segments, first, corrections, weights, d_o, errors, d_final,
        d_states, d_initial, d_v, d_beta,
        *p.q.stride()[:3], *p.k.stride()[:3], *d_o.stride()[:3], *beta.stride(), *decay_strides,
        *segment_strides, scale, lengths[0], batch * length * heads, *lengths[1:],
        **p.constants(), **options,
    )  # fmt: skip

    written, none = replace(p, v=writes), p.q.new_empty(0)
    d_q, d_k, d_decay = launch_key_query_gradients(
        written, d_o, None, states, d_states, none, none, with_decay, d_v
    )
    return d_q, d_k, d_v.to(p.v.dtype), d_decay, d_beta.sum(0), d_initial
