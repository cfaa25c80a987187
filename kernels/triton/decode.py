"""Few tokens a row, one after another: decoding and short prefills, for every kind of recurrence.

A program has all keys of a head and a block of its values; it reads their state once, takes it past
all tokens and writes it once. Time goes to that traffic: everything is float32 and element by
element, so that results are those of the recurrence, whatever the split into calls. Shapes decide
the launch alone and nothing is read back, so CUDA graphs can record it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.blocks import decode_options
from kernels.triton.device import (
    CHANNEL,
    LEAST,
    NONE,
    VARYING,
    load_channels,
    load_state,
    place,
    store_rows,
)
from kernels.triton.launch import Problem, state_or_zeros


def launch_decode(
    p: Problem,
    beta: Tensor | None,
    S: Tensor | None,
    z: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(o [B, T, H, V], final S, final z); the latter is empty where nothing is normalised."""
    batch, length, heads, key_width = p.q.shape
    value_width = p.v.shape[3]
    new = p.q.new_empty
    shape = (batch, heads, key_width, value_width)
    S = state_or_zeros(p, S, shape)
    z = state_or_zeros(p, z, shape[:3]) if p.normalize else S  # S: a stand-in
    o = torch.empty_like(p.v, memory_format=torch.contiguous_format)
    final = torch.empty_like(S)
    final_z = new(shape[:3] if p.normalize else 0, dtype=torch.float32)
    decay, decay_strides = p.gates()
    segments, first, segment_strides = p.documents()
    strengths, beta_strides = (p.q, (0, 0, 0)) if beta is None else (beta, beta.stride())
    options = decode_options(key_width, value_width)
    p.launch(
        decode, p.rows * triton.cdiv(value_width, options["BV"]),
        p.q, p.k, p.v, decay, strengths, segments, first, S, z, o, final, final_z,
        *p.q.stride()[:3], *p.k.stride()[:3], *p.v.stride()[:3], *decay_strides, *beta_strides,
        *segment_strides, p.scale, length, heads,
        FAMILY=p.family, DELTA=beta is not None, NORMALIZE=p.normalize,
        SEGMENTS=p.segments is not None, K=key_width, V=value_width, **options,
    )  # fmt: skip
    return o, final, final_z


@triton.jit(do_not_specialize=VARYING)
def decode(
    q, k, v, decay, beta, segments, first, initial, initial_z, o, final, final_z,
    q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, decay_sb, decay_st, decay_sh,
    beta_sb, beta_st, beta_sh, segments_sb, segments_st, scale, length, heads,
    FAMILY: tl.constexpr, DELTA: tl.constexpr, NORMALIZE: tl.constexpr, SEGMENTS: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Outputs [B, T, H, V] and the state after the last token, contiguous."""
    VALUE_BLOCKS: tl.constexpr = (V + BV - 1) // BV
    value_block, _, row, batch, head = place(VALUE_BLOCKS, 1, heads)
    q += batch * q_sb + head * q_sh
    k += batch * k_sb + head * k_sh
    v += batch * v_sb + head * v_sh
    decay += batch * decay_sb + head * decay_sh
    beta += batch * beta_sb + head * beta_sh
    segments += batch * segments_sb
    o += (batch * length * heads + head) * V

    keys = tl.arange(0, BK)
    values = value_block * BV + tl.arange(0, BV)
    state = load_state(initial + row * K * V, keys, values, K, V)
    if NORMALIZE:
        sums = load_channels(initial_z + row * K, keys, K)
    if SEGMENTS:
        document = tl.load(first + batch)
    for t in range(length):
        if SEGMENTS:
            current = tl.load(segments + t * segments_st)
            state = tl.where(current == document, state, 0.0)
            if NORMALIZE:
                sums = tl.where(current == document, sums, 0.0)
            document = current
        if FAMILY != NONE:
            if FAMILY == CHANNEL:
                kept = tl.exp(load_channels(decay + t * decay_st, keys, K))
                state *= kept[:, None]
            else:  # of a head, its stride over tokens is 0
                kept = tl.exp(tl.load(decay + t * decay_st))
                state *= kept
            if NORMALIZE:
                sums *= kept
        key = load_channels(k + t * k_st, keys, K)
        write = load_channels(v + t * v_st, values, V)
        if DELTA:
            read = tl.sum(key[:, None] * state, 0)
            write = tl.load(beta + t * beta_st) * (write - read)
        state += key[:, None] * write[None, :]
        query = load_channels(q + t * q_st, keys, K)
        out = tl.sum(query[:, None] * state, 0)
        if NORMALIZE:
            sums += key
            denominator = tl.sum(query * sums, 0)
            # Where no key has weight the output is 0: see `kernels.state.divide_or_zero`.
            empty = tl.abs(denominator) < LEAST
            out = tl.where(empty, 0.0, out / tl.where(empty, 1.0, denominator))
        else:
            out *= scale
        tl.store(o + t * heads * V + values, out.to(o.dtype.element_ty), mask=values < V)
    store_rows(final + row * K * V, V, keys, values, K, state, V)
    if NORMALIZE:
        tl.store(final_z + row * K + keys, sums, mask=(keys < K) & (value_block == 0))
