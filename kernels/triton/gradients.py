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
    queries = load_rows(q, q_st, rows, keys, length, K)
    keys_ = load_rows(k, k_st, rows, keys, length, K)
    before_row = index[:, None] > index[None, :]

    # Inside the tile. First, so that the square matrices are gone before states are rebuilt.
    d_scores = products_of_values(d_o, d_o_st, v, v_st, rows, length, OPERAND, PRECISION, V, BV)
    if NORMALIZE:
        # The denominator is one more value channel, of ones.
        weight = load_tokens(d_denominators, d_denominators_st, start, length)
        d_scores += weight[:, None]
    seen = visible(segments, segments_st, start, length, SEGMENTS)
    d_scores = tl.where(seen, d_scores * scale, 0.0)
    d_key_scores = d_scores
    if DELTA:
        d_key_scores = products_of_values(
            d_v, heads * V, v, v_st, rows, length, OPERAND, PRECISION, V, BV
        )
        d_key_scores = tl.where(seen & before_row, -d_key_scores, 0.0)
    dq, dk, d_rates = tile_gradients(
        queries, keys_, d_scores, d_key_scores, decay, decay_st, start, keys, length,
        FAMILY, D_DECAY, DELTA, OPERAND, PRECISION, K,
    )  # fmt: skip

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
            d_read_by_keys = add_dot(
                d_read_by_keys, load_rows(d_v, heads * V, rows, values, length, V), tl.trans(state),
                OPERAND, PRECISION,
            )  # fmt: skip
        v_block = load_rows(v, v_st, rows, values, length, V)
        d_written = add_dot(d_written, v_block, tl.trans(d_state), OPERAND, PRECISION)
        if NORMALIZE and begin == 0:
            weight = load_tokens(d_denominators, d_denominators_st, start, length)
            d_read += weight[:, None] * sum_[None, :]
            d_written += d_sum[None, :]
            through += (sum_ * d_sum)[:, None]

    before = decay_before(decay, decay_st, start, keys, length, FAMILY, K)
    into = tl.exp(before) * reach_in(segments, segments_st, first, start, length, SEGMENTS)
    d_read *= into
    after = decay_after(decay, decay_st, start, keys, length, FAMILY, K)
    out = reach_out(segments, segments_st, start, length, SEGMENTS)
    d_written *= tl.exp(after) * out
    if DELTA:
        d_read_by_keys *= -into
        dk += d_read_by_keys
    store_rows(
        d_q + (batch * length * heads + head) * K, heads * K, rows, keys, length,
        dq + d_read * scale, K,
    )  # fmt: skip
    store_rows(
        d_k + (batch * length * heads + head) * K, heads * K, rows, keys, length,
        dk + d_written, K,
    )  # fmt: skip

    if D_DECAY:
        # A decay at row t multiplies what row t and later ones read from before the tile, what
        # rows before t write for after it, and what passes the whole tile.
        through *= carried(segments, segments_st, first, start, start + TILE, length, SEGMENTS)
        through *= tl.exp(decay_whole(decay, decay_st, start, keys, length, FAMILY, K))[:, None]
        reading = load_rows(q, q_st, rows, keys, length, K).to(tl.float32) * scale * d_read
        keys_ = load_rows(k, k_st, rows, keys, length, K).to(tl.float32)
        writing = keys_ * d_written
        if DELTA:
            reading += keys_ * d_read_by_keys
        later = index[:, None] <= index[None, :]
        if FAMILY == CHANNEL:
            d_rates += dot(later.to(tl.float32), reading, OPERAND, PRECISION)
            d_rates += dot(before_row.to(tl.float32), writing, OPERAND, PRECISION)
            store_rows(
                d_decay + (batch * length * heads + head) * K, heads * K, rows, keys, length,
                d_rates + tl.trans(through), K,
            )  # fmt: skip
        else:
            d_rates += tl.sum(tl.where(later, tl.sum(reading, 1)[None, :], 0.0), 1)
            d_rates += tl.sum(tl.where(before_row, tl.sum(writing, 1)[None, :], 0.0), 1)
            at_rows = key_block.to(tl.int64) * rows_in_all + (batch * length + rows) * heads + head
            tl.store(d_decay + at_rows, d_rates + tl.sum(through, 0), mask=rows < length)


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
    q, k, d_scores, d_key_scores, decay, decay_stride, start, keys, length,
    FAMILY: tl.constexpr, D_DECAY: tl.constexpr, DELTA: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile's scores with respect to q, k and log-decays ([TILE, K], or [TILE]).

    With DELTA also of the scores of keys for keys.
    """
    if FAMILY == CHANNEL:
        rates = load_rows(decay, decay_stride, start + tl.arange(0, TILE), keys, length, K)
        return channel_gradients(
            q, k, rates, d_scores, d_key_scores, D_DECAY, DELTA, OPERAND, PRECISION
        )
    else:
        decays = token_weights(decay, decay_stride, start, length, FAMILY)
        weighted = d_scores * decays
        dq = dot(weighted, k, OPERAND, PRECISION)
        dk = dot(tl.trans(weighted), q, OPERAND, PRECISION)
        if D_DECAY:
            pairs = dot(q, tl.trans(k), OPERAND, PRECISION) * weighted
        if DELTA:
            weighted = d_key_scores * decays
            dk = add_dot(dk, weighted + tl.trans(weighted), k, OPERAND, PRECISION)
            if D_DECAY:
                pairs += dot(k, tl.trans(k), OPERAND, PRECISION) * weighted
        d_rates = tl.zeros((TILE,), tl.float32)
        if D_DECAY:
            index = tl.arange(0, TILE)
            before_row = index[:, None] > index[None, :]
            pairs = tl.where(before_row, pairs, 0.0)
            # [i, t]: sum over keys before t of query i; then over the queries from t on.
            spanning = dot(pairs, tl.trans(before_row.to(tl.float32)), OPERAND, PRECISION)
            d_rates = tl.sum(tl.where(index[:, None] >= index[None, :], spanning, 0.0), 0)
        return dq, dk, d_rates


@triton.jit
def channel_gradients(
    q, k, rates, d_scores, d_key_scores,
    D_DECAY: tl.constexpr, DELTA: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of `channel_scores` with respect to q, k and rates.

    At every level one product serves both halves: with the gradient made symmetric, rows of right
    halves sum over keys and rows of left halves over queries.
    """
    index = tl.arange(0, TILE)
    diagonal = tl.sum(tl.where(index[:, None] == index[None, :], d_scores, 0.0), 1)[:, None]
    symmetric = (d_scores + tl.trans(d_scores)).to(OPERAND)
    if DELTA:
        symmetric_of_keys = (d_key_scores + tl.trans(d_key_scores)).to(OPERAND)
    dq = diagonal * k.to(tl.float32)
    dk = diagonal * q.to(tl.float32)
    d_rates = tl.zeros_like(rates)
    before, after = rates, tl.zeros_like(rates)
    for level in tl.range(LEVELS, loop_unroll_factor=1, num_stages=1):
        decays = tl.exp(halves(before, after, index, level))
        own = halves(q, k, index, level).to(tl.float32)
        blocks = index >> level
        neighbours = blocks[:, None] == (blocks ^ 1)[None, :]
        pairs = tl.where(neighbours, symmetric, 0.0)
        gradient = dot(pairs, own * decays, OPERAND, PRECISION) * decays
        dq += halves(gradient, tl.zeros_like(gradient), index, level)
        dk += halves(tl.zeros_like(gradient), gradient, index, level)
        products = own * gradient
        if DELTA:
            own = k.to(tl.float32)
            pairs = tl.where(neighbours, symmetric_of_keys, 0.0)
            gradient = dot(pairs, own * decays, OPERAND, PRECISION) * decays
            dk += gradient
            products += own * gradient
        if D_DECAY:
            # Row t's decay lies between the anchor and the queries from t on (right half), or
            # between the keys before t and the anchor (left half).
            right = (blocks & 1) == 1
            begin = tl.where(right, index, blocks << level)[:, None]
            end = tl.where(right, (blocks + 1) << level, index)[:, None]
            between = (begin <= index[None, :]) & (index[None, :] < end)
            d_rates = add_dot(d_rates, between.to(tl.float32), products, OPERAND, PRECISION)
        before, after = merge(before, after, index, level)
    return dq, dk, d_rates
