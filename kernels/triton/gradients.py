"""The backward pass of one tile, in two kernels: gradients of values; of queries, keys, decays.

Both rebuild what they need of the tile's states from the chunk's: the state before the tile by
passing the chunk's earlier tiles, the gradient of the state after it by passing the later ones.
"""

import triton
import triton.language as tl

from kernels.triton.device import (
    CHANNEL,
    LEVELS,
    TILE,
    VARYING,
    add_dot,
    add_reading,
    carried,
    decay_after,
    decay_before,
    decay_whole,
    dot,
    load_channels,
    load_rows,
    load_state,
    load_tokens,
    pass_tile,
    place,
    reach_in,
    reach_out,
    store_rows,
    visible,
)
from kernels.triton.scores import halves, merge, scores, token_weights


@triton.jit(do_not_specialize=VARYING)
def value_gradients(
    q, k, d_o, decay, segments, first, d_states, d_v,
    q_sb, q_st, q_sh, k_sb, k_st, k_sh, d_o_sb, d_o_st, d_o_sh, decay_sb, decay_st, decay_sh,
    segments_sb, segments_st, scale, length, heads, num_chunks, chunk_tiles,
    FAMILY: tl.constexpr, SEGMENTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """d_v [B, T, H, V], contiguous."""
    VALUE_BLOCKS: tl.constexpr = (V + BV - 1) // BV
    tiles = tl.cdiv(length, TILE)
    value_block, tile, row, batch, head = place(VALUE_BLOCKS, tiles, heads)
    q += batch * q_sb + head * q_sh
    k += batch * k_sb + head * k_sh
    d_o += batch * d_o_sb + head * d_o_sh
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
    d_out = load_rows(d_o, d_o_st, rows, values, length, V)
    result = dot(tl.trans(weights), d_out, OPERAND, PRECISION)

    reach = reach_out(segments, segments_st, start, length, SEGMENTS)
    chunk = tile // chunk_tiles
    last = tl.minimum((chunk + 1) * chunk_tiles, tiles) - 1
    for begin in range(0, K, BK):
        keys = begin + tl.arange(0, BK)
        d_state = load_state(d_states + (row * num_chunks + chunk) * K * V, keys, values, K, V)
        unused = tl.zeros((BK,), tl.float32)
        for step in range(last - tile):
            d_state, unused = pass_tile(
                d_state, unused, q, q_st, d_o, d_o_st, decay, decay_st,
                segments, segments_st, first, d_o, 0, last - step, keys, values, length, scale,
                True, FAMILY, False, SEGMENTS, OPERAND, PRECISION, K, V,
            )  # fmt: skip
        between = decay_after(decay, decay_st, start, keys, length, FAMILY, K)
        decayed = load_rows(k, k_st, rows, keys, length, K).to(tl.float32)
        decayed *= tl.exp(between) * reach
        result += dot(decayed, d_state, OPERAND, PRECISION)
    d_v += (batch * length * heads + head) * V
    store_rows(d_v, heads * V, rows, values, length, result, V)


@triton.jit(do_not_specialize=VARYING)
def key_query_gradients(
    q, k, v, d_o, d_v, decay, segments, first, d_denominators, states, d_states, sums, d_sums,
    d_q, d_k, d_decay,
    q_sb, q_st, q_sh, k_sb, k_st, k_sh, v_sb, v_st, v_sh, d_o_sb, d_o_st, d_o_sh,
    decay_sb, decay_st, decay_sh, segments_sb, segments_st, d_denominators_sb, d_denominators_st,
    scale, length, rows_in_all, heads, num_chunks, chunk_tiles,
    FAMILY: tl.constexpr, NORMALIZE: tl.constexpr, SEGMENTS: tl.constexpr, D_DECAY: tl.constexpr,
    DELTA: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """d_q, d_k [B, T, H, K], contiguous; d_decay [B, T, H, K], or [K / BK, B, T, H] to be summed.

    A gradient of a log-decay sums exactly the products that this decay multiplies. The usual
    q d_q - k d_k of running sums leaves rounding noise where the true gradient is tiny.

    With DELTA the states are read twice, by queries and, before each write, by keys: v are what
    the delta rule writes, and the gradient of what keys read is -d_v [B, T, H, V], contiguous.
    """
    KEY_BLOCKS: tl.constexpr = (K + BK - 1) // BK
    tiles = tl.cdiv(length, TILE)
    key_block, tile, row, batch, head = place(KEY_BLOCKS, tiles, heads)
    q += batch * q_sb + head * q_sh
    k += batch * k_sb + head * k_sh
    v += batch * v_sb + head * v_sh
    d_o += batch * d_o_sb + head * d_o_sh
    decay += batch * decay_sb + head * decay_sh
    segments += batch * segments_sb
    first += batch
    d_denominators += batch * d_denominators_sb + head

    start = tile * TILE
    index = tl.arange(0, TILE)
    rows = start + index
    keys = key_block * BK + tl.arange(0, BK)
    chunk = tile // chunk_tiles
    last = tl.minimum((chunk + 1) * chunk_tiles, tiles) - 1
    at = row * num_chunks + chunk

    d_v += (batch * length * heads + head) * V

    # What the tile exchanges with the rest of the row: through the state before it and after it.
    d_read = tl.zeros((TILE, BK), tl.float32)
    d_read_by_keys = tl.zeros((TILE, BK), tl.float32)
    d_written = tl.zeros((TILE, BK), tl.float32)
    # A matrix of one column: Triton 3.7 cannot reduce a vector to a number here for sm_100.
    through = tl.zeros((BK, 1), tl.float32)
    for begin in range(0, V, BV):
        values = begin + tl.arange(0, BV)
        state = load_state(states + at * K * V, keys, values, K, V)
        sum_ = tl.zeros((BK,), tl.float32)
        d_sum = tl.zeros((BK,), tl.float32)
        if NORMALIZE:
            sum_ = load_channels(sums + at * K, keys, K)
            d_sum = load_channels(d_sums + at * K, keys, K)
        for earlier in range(chunk * chunk_tiles, tile):
            state, sum_ = pass_tile(
                state, sum_, k, k_st, v, v_st, decay, decay_st, segments, segments_st, first,
                d_denominators, d_denominators_st, earlier, keys, values, length, scale,
                False, FAMILY, NORMALIZE, SEGMENTS, OPERAND, PRECISION, K, V,
            )  # fmt: skip
        d_state = load_state(d_states + at * K * V, keys, values, K, V)
        for step in range(last - tile):
            d_state, d_sum = pass_tile(
                d_state, d_sum, q, q_st, d_o, d_o_st, decay, decay_st,
                segments, segments_st, first, d_denominators, d_denominators_st,
                last - step, keys, values, length, scale,
                True, FAMILY, NORMALIZE, SEGMENTS, OPERAND, PRECISION, K, V,
            )  # fmt: skip
            if DELTA:
                d_state = add_reading(
                    d_state, k, k_st, d_v, heads * V, decay, decay_st, segments, segments_st, first,
                    last - step, keys, values, length, -1.0,
                    FAMILY, SEGMENTS, OPERAND, PRECISION, K, V,
                )  # fmt: skip
        through += tl.sum(state * d_state, 1)[:, None]
        d_out = load_rows(d_o, d_o_st, rows, values, length, V)
        d_read = add_dot(d_read, d_out, tl.trans(state), OPERAND, PRECISION)
        if DELTA:
            d_value = load_rows(d_v, heads * V, rows, values, length, V)
            d_read_by_keys = add_dot(d_read_by_keys, d_value, tl.trans(state), OPERAND, PRECISION)
        v_block = load_rows(v, v_st, rows, values, length, V)
        d_written = add_dot(d_written, v_block, tl.trans(d_state), OPERAND, PRECISION)
        if NORMALIZE and begin == 0:
            # The denominator is one more value channel, of ones.
            weight = load_tokens(d_denominators, d_denominators_st, start, length)
            d_read += weight[:, None] * sum_[None, :]
            d_written += d_sum[None, :]
            through += (sum_ * d_sum)[:, None]

    queries = load_rows(q, q_st, rows, keys, length, K)
    keys_ = load_rows(k, k_st, rows, keys, length, K)
    before = decay_before(decay, decay_st, start, keys, length, FAMILY, K)
    into = tl.exp(before) * reach_in(segments, segments_st, first, start, length, SEGMENTS)
    after = decay_after(decay, decay_st, start, keys, length, FAMILY, K)
    out = tl.exp(after) * reach_out(segments, segments_st, start, length, SEGMENTS)
    dq = d_read * (into * scale)
    dk = d_written * out
    d_rates = tl.zeros((TILE, BK) if FAMILY == CHANNEL else (TILE,), tl.float32)
    if D_DECAY:
        # A decay at row t multiplies what row t and later ones read from before the tile, what
        # rows before t write for after it, and what passes the whole tile.
        through *= carried(segments, segments_st, first, start, start + TILE, length, SEGMENTS)
        through *= tl.exp(decay_whole(decay, decay_st, start, keys, length, FAMILY, K))[:, None]
        reading = queries.to(tl.float32) * dq
        writing = keys_.to(tl.float32) * dk
        if DELTA:
            reading -= keys_.to(tl.float32) * (d_read_by_keys * into)
        before_row = index[:, None] > index[None, :]
        if FAMILY == CHANNEL:
            d_rates = tl.cumsum(reading, 0, reverse=True) + tl.trans(through)
            d_rates = add_dot(d_rates, flags(before_row), writing, OPERAND, PRECISION)
        else:
            d_rates = tl.cumsum(tl.sum(reading, 1), 0, reverse=True) + tl.sum(through, 0)
            d_rates += tl.sum(tl.where(before_row, tl.sum(writing, 1)[None, :], 0.0), 1)

    # Inside the tile. Last, when of the states only these sums are left.
    if DELTA:
        dk -= d_read_by_keys * into
    tl.debug_barrier()
    seen = visible(segments, segments_st, start, length, SEGMENTS)
    d_scores = products_of_values(d_o, d_o_st, v, v_st, rows, length, OPERAND, PRECISION, V, BV)
    if NORMALIZE:
        weight = load_tokens(d_denominators, d_denominators_st, start, length)
        d_scores += weight[:, None]
    queries = load_rows(q, q_st, rows, keys, length, K)
    keys_ = load_rows(k, k_st, rows, keys, length, K)
    dq, dk, d_rates = tile_gradients(
        dq, dk, d_rates, queries, keys_, tl.where(seen, d_scores * scale, 0.0), decay, decay_st,
        start, keys, length, False, FAMILY, D_DECAY, OPERAND, PRECISION, K,
    )  # fmt: skip
    first_row = batch * length * heads + head
    store_rows(d_q + first_row * K, heads * K, rows, keys, length, dq, K)
    if DELTA:
        # Without it, both readings' matrices lie in registers at once.
        tl.debug_barrier()
        d_scores = products_of_values(
            d_v, heads * V, v, v_st, rows, length, OPERAND, PRECISION, V, BV
        )
        seen = visible(segments, segments_st, start, length, SEGMENTS)
        seen = seen & (index[:, None] != index[None, :])
        keys_ = load_rows(k, k_st, rows, keys, length, K)
        dq, dk, d_rates = tile_gradients(
            dq, dk, d_rates, keys_, keys_, tl.where(seen, -d_scores, 0.0), decay, decay_st,
            start, keys, length, True, FAMILY, D_DECAY, OPERAND, PRECISION, K,
        )  # fmt: skip
    store_rows(d_k + first_row * K, heads * K, rows, keys, length, dk, K)
    if D_DECAY:
        if FAMILY == CHANNEL:
            store_rows(d_decay + first_row * K, heads * K, rows, keys, length, d_rates, K)
        else:
            at_rows = key_block.to(tl.int64) * rows_in_all + (batch * length + rows) * heads + head
            tl.store(d_decay + at_rows, d_rates, mask=rows < length)


@triton.jit
def products_of_values(
    x, x_stride, y, y_stride, rows, length,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """x_i . y_j of every two rows of a tile, over all value channels: [TILE, TILE]."""
    result = tl.zeros((TILE, TILE), tl.float32)
    for begin in range(0, V, BV):
        values = begin + tl.arange(0, BV)
        x_block = load_rows(x, x_stride, rows, values, length, V)
        y_block = load_rows(y, y_stride, rows, values, length, V)
        result = add_dot(result, x_block, tl.trans(y_block), OPERAND, PRECISION)
    return result


@triton.jit
def tile_gradients(
    dq, dk, d_rates, q, k, d_scores, decay, decay_stride, start, keys, length,
    BY_KEYS: tl.constexpr, FAMILY: tl.constexpr, D_DECAY: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Adds the gradients of a tile's scores to those of q, k and log-decays ([TILE, K], [TILE]).

    BY_KEYS: q are the keys as well, and dq is left as it is.
    """
    if FAMILY == CHANNEL:
        rates = load_rows(decay, decay_stride, start + tl.arange(0, TILE), keys, length, K)
        return channel_gradients(
            dq, dk, d_rates, q, k, rates, d_scores, BY_KEYS, D_DECAY, OPERAND, PRECISION
        )
    else:
        weighted = d_scores * token_weights(decay, decay_stride, start, length, FAMILY)
        if D_DECAY:
            index = tl.arange(0, TILE)
            before_row = index[:, None] > index[None, :]
            pairs = dot(q, tl.trans(k), OPERAND, PRECISION) * weighted
            # [t, j]: of key j, the sum over queries from t on; then over the keys before t.
            spanning = tl.cumsum(tl.where(before_row, pairs, 0.0), 0, reverse=True)
            d_rates += tl.sum(tl.where(before_row, spanning, 0.0), 1)
        if BY_KEYS:
            dk = add_dot(dk, weighted + tl.trans(weighted), k, OPERAND, PRECISION)
        else:
            dq = add_dot(dq, weighted, k, OPERAND, PRECISION)
            dk = add_dot(dk, tl.trans(weighted), q, OPERAND, PRECISION)
        return dq, dk, d_rates


@triton.jit
def channel_gradients(
    dq, dk, d_rates, q, k, rates, d_scores,
    BY_KEYS: tl.constexpr, D_DECAY: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds the gradients of `channel_scores` to those of q, k and rates; see `tile_gradients`.

    At every level one product serves both halves: with the gradient made symmetric, rows of right
    halves sum over keys and rows of left halves over queries.
    """
    index = tl.arange(0, TILE)
    symmetric = (d_scores + tl.trans(d_scores)).to(OPERAND)
    if not BY_KEYS:
        diagonal = tl.sum(tl.where(index[:, None] == index[None, :], d_scores, 0.0), 1)[:, None]
        dq += diagonal * k.to(tl.float32)
        dk += diagonal * q.to(tl.float32)
    before, after = rates, tl.zeros_like(rates)
    for level in tl.range(LEVELS, loop_unroll_factor=1, num_stages=1):
        decays = tl.exp(halves(before, after, index, level))
        own = halves(q, k, index, level).to(tl.float32)
        blocks = index >> level
        pairs = tl.where(blocks[:, None] == (blocks ^ 1)[None, :], symmetric, 0.0)
        gradient = dot(pairs, own * decays, OPERAND, PRECISION) * decays
        if BY_KEYS:
            dk += gradient
        else:
            dq += halves(gradient, tl.zeros_like(gradient), index, level)
            dk += halves(tl.zeros_like(gradient), gradient, index, level)
        if D_DECAY:
            # Row t's decay lies between the anchor and the queries from t on (right half), or
            # between the keys before t and the anchor (left half).
            right = (blocks & 1) == 1
            begin = tl.where(right, index, blocks << level)[:, None]
            end = tl.where(right, (blocks + 1) << level, index)[:, None]
            between = (begin <= index[None, :]) & (index[None, :] < end)
            d_rates = add_dot(d_rates, flags(between), own * gradient, OPERAND, PRECISION)
        before, after = merge(before, after, index, level)
    return dq, dk, d_rates


@triton.jit
def flags(mask):
    """1 where the mask holds, else 0: exact in the narrowest operand."""
    return mask.to(tl.float32).to(tl.bfloat16)
