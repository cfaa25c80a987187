"""States at the borders of chunks: a parallel pass over chunks, then a scan along them.

Forwards these are the recurrence's states before each chunk; backwards the gradients with respect
to the states after each chunk. Only one state per chunk is written; kernels rebuild those of the
tiles in between.
"""

import triton
import triton.language as tl

from kernels.triton.device import CHANNEL, TILE, VARYING, carried, decay_whole, pass_tile, place


@triton.jit(do_not_specialize=VARYING)
def chunk_states(
    x, y, decay, segments, first, weights, states, sums, totals,
    x_sb, x_st, x_sh, y_sb, y_st, y_sh, decay_sb, decay_st, decay_sh,
    segments_sb, segments_st, weights_sb, weights_st,
    scale, length, heads, num_chunks, chunk_tiles,
    BACKWARD: tl.constexpr, FAMILY: tl.constexpr, NORMALIZE: tl.constexpr, SEGMENTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """What every chunk alone adds to the state, and the sum of its log-decays."""
    KEY_BLOCKS: tl.constexpr = (K + BK - 1) // BK
    VALUE_BLOCKS: tl.constexpr = (V + BV - 1) // BV
    block, chunk, row, batch, head = place(VALUE_BLOCKS * KEY_BLOCKS, num_chunks, heads)
    key_block, value_block = block // VALUE_BLOCKS, block % VALUE_BLOCKS
    keys = key_block * BK + tl.arange(0, BK)
    values = value_block * BV + tl.arange(0, BV)

    decay += batch * decay_sb + head * decay_sh
    state = tl.zeros((BK, BV), tl.float32)
    total = tl.zeros((BK if FAMILY == CHANNEL else 1,), tl.float32)
    sum_ = tl.zeros((BK,), tl.float32)
    begin = chunk * chunk_tiles
    count = tl.minimum(chunk_tiles, tl.cdiv(length, TILE) - begin)
    for step in range(count):
        tile = begin + (count - 1 - step if BACKWARD else step)
        state, sum_ = pass_tile(
            state, sum_,
            x + batch * x_sb + head * x_sh, x_st, y + batch * y_sb + head * y_sh, y_st,
            decay, decay_st, segments + batch * segments_sb, segments_st, first + batch,
            weights + batch * weights_sb + head, weights_st, tile, keys, values, length, scale,
            BACKWARD, FAMILY, NORMALIZE, SEGMENTS, OPERAND, PRECISION, K, V,
        )  # fmt: skip
        total += decay_whole(decay, decay_st, tile * TILE, keys, length, FAMILY, K)

    at = row * num_chunks + chunk
    inside = (keys[:, None] < K) & (values[None, :] < V)
    tl.store(states + at * K * V + keys[:, None] * V + values[None, :], state, mask=inside)
    if value_block == 0:
        if NORMALIZE:
            tl.store(sums + at * K + keys, sum_, mask=keys < K)
        if not BACKWARD:
            if FAMILY == CHANNEL:
                tl.store(totals + at * K + keys, total, mask=keys < K)
            else:
                tl.store(totals + at + tl.arange(0, 1), total, mask=key_block == 0)


@triton.jit(do_not_specialize=VARYING)
def scan_states(
    added, totals, segments, first, initial, states, final,
    segments_sb, segments_st, length, heads, num_chunks, chunk_tiles,
    BACKWARD: tl.constexpr, SEGMENTS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    DECAYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Runs along the chunks: writes what comes in at each, and at last what comes out of all."""
    BLOCKS: tl.constexpr = (K * V + BLOCK - 1) // BLOCK
    block, _, row, batch, _ = place(BLOCKS, 1, heads)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < K * V
    channels = offsets // V if DECAYS > 1 else offsets * 0
    segments += batch * segments_sb
    state = tl.load(initial + row * K * V + offsets, mask=inside, other=0.0)
    for step in range(num_chunks):
        chunk = num_chunks - 1 - step if BACKWARD else step
        at = row * num_chunks + chunk
        tl.store(states + at * K * V + offsets, state.to(states.dtype.element_ty), mask=inside)
        start = chunk * chunk_tiles * TILE
        end = start + chunk_tiles * TILE
        kept = carried(segments, segments_st, first + batch, start, end, length, SEGMENTS)
        kept = kept * tl.exp(tl.load(totals + at * DECAYS + channels, mask=inside, other=0.0))
        state = state * kept + tl.load(added + at * K * V + offsets, mask=inside, other=0.0)
    tl.store(final + row * K * V + offsets, state, mask=inside)
