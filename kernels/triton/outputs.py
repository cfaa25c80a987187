"""The forward pass of one tile: what its queries read from the state and from their own tile."""

import triton
import triton.language as tl

from kernels.triton.device import (
    LEAST,
    TILE,
    VARYING,
    decay_before,
    dot,
    load_channels,
    load_rows,
    load_state,
    pass_tile,
    place,
    reach_in,
    store_rows,
    store_tile,
)
from kernels.triton.scores import scores


@triton.jit(do_not_specialize=VARYING)
def outputs(
    q, k, v, decay, segments, first, states, sums, o, denominators, kept_weights,
    q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, decay_sb, decay_st, decay_sh,
    segments_sb, segments_st, scale, length, heads, num_chunks, chunk_tiles,
    FAMILY: tl.constexpr, NORMALIZE: tl.constexpr, SEGMENTS: tl.constexpr,
    KEEP_WEIGHTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V], contiguous, and with NORMALIZE the denominators [B, T, H].

    With KEEP_WEIGHTS also the weights of every tile's pairs, [B * H * tiles, TILE, TILE].
    """
    VALUE_BLOCKS: tl.constexpr = (V + BV - 1) // BV
    tiles = tl.cdiv(length, TILE)
    value_block, tile, row, batch, head = place(VALUE_BLOCKS, tiles, heads)
    q += batch * q_sb + head * q_sh
    k += batch * k_sb + head * k_sh
    v += batch * v_sb + head * v_sh
    decay += batch * decay_sb + head * decay_sh
    segments += batch * segments_sb
    first += batch

    start = tile * TILE
    rows = start + tl.arange(0, TILE)
    values = value_block * BV + tl.arange(0, BV)
    weights = scores(
        q, q_st, k, k_st, decay, decay_st, segments, segments_st, start, length, scale,
        FAMILY, SEGMENTS, OPERAND, PRECISION, K, BK,
    )  # fmt: skip
    result = dot(weights, load_rows(v, v_st, rows, values, length, V), OPERAND, PRECISION)
    denominator = tl.sum(weights, 1)
    if KEEP_WEIGHTS and value_block == 0:
        store_tile(kept_weights, row * tiles + tile, weights)

    reach = reach_in(segments, segments_st, first, start, length, SEGMENTS) * scale
    chunk = tile // chunk_tiles
    at = row * num_chunks + chunk
    for begin in range(0, K, BK):
        keys = begin + tl.arange(0, BK)
        state = load_state(states + at * K * V, keys, values, K, V)
        sum_ = tl.zeros((BK,), tl.float32)
        if NORMALIZE:
            sum_ = load_channels(sums + at * K, keys, K)
        for earlier in range(chunk * chunk_tiles, tile):
            state, sum_ = pass_tile(
                state, sum_, k, k_st, v, v_st, decay, decay_st, segments, segments_st, first, o, 0,
                earlier, keys, values, length, scale,
                False, FAMILY, NORMALIZE, SEGMENTS, OPERAND, PRECISION, K, V,
            )  # fmt: skip
        between = decay_before(decay, decay_st, start, keys, length, FAMILY, K)
        queries = load_rows(q, q_st, rows, keys, length, K).to(tl.float32)
        queries *= tl.exp(between) * reach
        result += dot(queries, state, OPERAND, PRECISION)
        if NORMALIZE:
            denominator += tl.sum(queries * sum_[None, :], 1)

    if NORMALIZE:
        # Without any weight the only unbiased output is 0: see `kernels.state.divide_or_zero`.
        empty = tl.abs(denominator) < LEAST
        result = tl.where(empty[:, None], 0.0, result / tl.where(empty, 1.0, denominator)[:, None])
        if value_block == 0:
            at_rows = (batch * length + rows) * heads + head
            tl.store(denominators + at_rows, denominator, mask=rows < length)
    o += (batch * length * heads + head) * V
    store_rows(o, heads * V, rows, values, length, result, V)
