"""The delta rule along a row, tile after tile: what each token writes, and the gradients of that.

One program has all keys of a head, in blocks, and a block of its values. Once the writes are known,
the states are those of the additive recurrence with writes in the place of values, so that only one
state per chunk is kept, as there; the same holds for the gradients of the states.

errors r_i = v_i - P_i, where P_i is what k_i reads before its token writes
writes u_i = beta_i r_i

Errors of a state never fade where nothing decays, and writes undo earlier ones: all that passes
from one kernel to another is float32, and products take operands of 16 bits (see `add_dot`).
"""

import triton
import triton.language as tl

from kernels.triton.device import (
    CHANNEL,
    TILE,
    VARYING,
    add_dot,
    carried,
    decay_after,
    decay_before,
    decay_whole,
    dot,
    load_rows,
    load_state,
    load_tile,
    load_tokens,
    place,
    reach_in,
    reach_out,
    store_rows,
)


@triton.jit(do_not_specialize=VARYING)
def delta_states(
    k, v, beta, decay, segments, first, corrections, initial, states, final, errors, writes,
    k_sb, k_st, k_sh, v_sb, v_st, v_sh, beta_sb, beta_st, beta_sh, decay_sb, decay_st, decay_sh,
    segments_sb, segments_st, length, heads, num_chunks, chunk_tiles,
    FAMILY: tl.constexpr, SEGMENTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """errors and writes [B, T, H, V], contiguous; the states before each chunk and at the end."""
    VALUE_BLOCKS: tl.constexpr = (V + BV - 1) // BV
    value_block, _, row, batch, head = place(VALUE_BLOCKS, 1, heads)
    k += batch * k_sb + head * k_sh
    v += batch * v_sb + head * v_sh
    beta += batch * beta_sb + head * beta_sh
    decay += batch * decay_sb + head * decay_sh
    segments += batch * segments_sb
    first += batch
    errors += (batch * length * heads + head) * V
    writes += (batch * length * heads + head) * V

    tiles = tl.cdiv(length, TILE)
    values = value_block * BV + tl.arange(0, BV)
    state = load_blocks(initial + row * K * V, values, K, V, BK)
    for tile in range(tiles):
        if tile % chunk_tiles == 0:
            chunk = row * num_chunks + tile // chunk_tiles
            store_blocks(states + chunk * K * V, state, values, K, V, BK)
        start = tile * TILE
        rows = start + tl.arange(0, TILE)
        read = tl.zeros((TILE, BV), tl.float32)
        for block in tl.static_range(len(state)):
            keys = block * BK + tl.arange(0, BK)
            keys_ = load_rows(k, k_st, rows, keys, length, K)
            keys_ = decayed_before(keys_, decay, decay_st, start, keys, length, FAMILY, K)
            read = add_dot(read, keys_, state[block], OPERAND, PRECISION)
        into = reach_in(segments, segments_st, first, start, length, SEGMENTS)
        into *= token_decay_before(decay, decay_st, start, length, FAMILY)
        error = load_rows(v, v_st, rows, values, length, V).to(tl.float32) - read * into
        weight = load_tokens(beta, beta_st, start, length)[:, None]
        correction = load_tile(corrections, row * tiles + tile)
        error -= dot(correction, error * weight, OPERAND, PRECISION)
        write = error * weight
        store_rows(errors, heads * V, rows, values, length, error, V)
        store_rows(writes, heads * V, rows, values, length, write, V)

        out = reach_out(segments, segments_st, start, length, SEGMENTS)
        write *= out * token_decay_after(decay, decay_st, start, length, FAMILY)
        kept = carried(segments, segments_st, first, start, start + TILE, length, SEGMENTS)
        later = ()
        for block in tl.static_range(len(state)):
            keys = block * BK + tl.arange(0, BK)
            keys_ = load_rows(k, k_st, rows, keys, length, K)
            keys_ = decayed_after(keys_, decay, decay_st, start, keys, length, FAMILY, K)
            whole = kept * tl.exp(decay_whole(decay, decay_st, start, keys, length, FAMILY, K))
            total = state[block] * whole[:, None]
            later += (add_dot(total, tl.trans(keys_), write, OPERAND, PRECISION),)
        state = later
    store_blocks(final + row * K * V, state, values, K, V, BK)


@triton.jit(do_not_specialize=VARYING)
def delta_state_gradients(
    q, k, beta, decay, segments, first, corrections, weights, d_o, errors, d_final,
    d_states, d_initial, d_v, d_beta,
    q_sb, q_st, q_sh, k_sb, k_st, k_sh, d_o_sb, d_o_st, d_o_sh,
    beta_sb, beta_st, beta_sh, decay_sb, decay_st, decay_sh,
    segments_sb, segments_st, scale, length, rows_in_all, heads, num_chunks, chunk_tiles,
    FAMILY: tl.constexpr, SEGMENTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """d_v [B, T, H, V]; the gradients of the states after each chunk and of the incoming one.

    And d_beta [V / BV, B, T, H], to be summed. weights are those of the outputs of every tile. The
    gradient of what k_i reads is -d_v_i.
    """
    VALUE_BLOCKS: tl.constexpr = (V + BV - 1) // BV
    value_block, _, row, batch, head = place(VALUE_BLOCKS, 1, heads)
    q += batch * q_sb + head * q_sh
    k += batch * k_sb + head * k_sh
    d_o += batch * d_o_sb + head * d_o_sh
    beta += batch * beta_sb + head * beta_sh
    decay += batch * decay_sb + head * decay_sh
    segments += batch * segments_sb
    first += batch
    errors += (batch * length * heads + head) * V
    d_v += (batch * length * heads + head) * V
    d_beta += value_block.to(tl.int64) * rows_in_all + batch * length * heads + head

    tiles = tl.cdiv(length, TILE)
    values = value_block * BV + tl.arange(0, BV)
    d_state = load_blocks(d_final + row * K * V, values, K, V, BK)
    for step in range(tiles):
        tile = tiles - 1 - step
        if (tile + 1) % chunk_tiles == 0 or step == 0:
            chunk = row * num_chunks + tile // chunk_tiles
            store_blocks(d_states + chunk * K * V, d_state, values, K, V, BK)
        start = tile * TILE
        rows = start + tl.arange(0, TILE)
        d_write = tl.zeros((TILE, BV), tl.float32)
        for block in tl.static_range(len(d_state)):
            keys = block * BK + tl.arange(0, BK)
            keys_ = load_rows(k, k_st, rows, keys, length, K)
            keys_ = decayed_after(keys_, decay, decay_st, start, keys, length, FAMILY, K)
            d_write = add_dot(d_write, keys_, d_state[block], OPERAND, PRECISION)
        out = reach_out(segments, segments_st, start, length, SEGMENTS)
        d_write *= out * token_decay_after(decay, decay_st, start, length, FAMILY)
        d_out = load_rows(d_o, d_o_st, rows, values, length, V)
        pairs = load_tile(weights, row * tiles + tile)
        d_write = add_dot(d_write, tl.trans(pairs), d_out, OPERAND, PRECISION)
        weight = load_tokens(beta, beta_st, start, length)[:, None]
        correction = load_tile(corrections, row * tiles + tile)
        d_write -= dot(tl.trans(correction), d_write * weight, OPERAND, PRECISION)
        d_value = d_write * weight
        store_rows(d_v, heads * V, rows, values, length, d_value, V)
        error = load_rows(errors, heads * V, rows, values, length, V).to(tl.float32)
        d_weight = tl.sum(d_write * error, 1)
        tl.store(d_beta + rows.to(tl.int64) * heads, d_weight, mask=rows < length)

        into = reach_in(segments, segments_st, first, start, length, SEGMENTS)
        into *= token_decay_before(decay, decay_st, start, length, FAMILY)
        d_out = d_out.to(tl.float32) * (into * scale)
        d_value *= -into
        kept = carried(segments, segments_st, first, start, start + TILE, length, SEGMENTS)
        earlier = ()
        for block in tl.static_range(len(d_state)):
            keys = block * BK + tl.arange(0, BK)
            queries = load_rows(q, q_st, rows, keys, length, K)
            queries = decayed_before(queries, decay, decay_st, start, keys, length, FAMILY, K)
            keys_ = load_rows(k, k_st, rows, keys, length, K)
            keys_ = decayed_before(keys_, decay, decay_st, start, keys, length, FAMILY, K)
            whole = kept * tl.exp(decay_whole(decay, decay_st, start, keys, length, FAMILY, K))
            total = d_state[block] * whole[:, None]
            total = add_dot(total, tl.trans(queries), d_out, OPERAND, PRECISION)
            earlier += (add_dot(total, tl.trans(keys_), d_value, OPERAND, PRECISION),)
        d_state = earlier
    store_blocks(d_initial + row * K * V, d_state, values, K, V, BK)


# A decay per channel weighs keys; any other weighs whole rows, which leaves keys as they are.


@triton.jit
def decayed_before(
    x, decay, stride, start, keys, length, FAMILY: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """x times its decays from the start of the tile on, if those are of channels."""
    if FAMILY == CHANNEL:
        between = decay_before(decay, stride, start, keys, length, FAMILY, K)
        return x.to(tl.float32) * tl.exp(between)
    else:
        return x


@triton.jit
def decayed_after(
    x, decay, stride, start, keys, length, FAMILY: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """x times its decays up to the end of the tile, if those are of channels."""
    if FAMILY == CHANNEL:
        between = decay_after(decay, stride, start, keys, length, FAMILY, K)
        return x.to(tl.float32) * tl.exp(between)
    else:
        return x


@triton.jit
def token_decay_before(decay, stride, start, length, FAMILY: tl.constexpr):
    """The same decays if they are of whole tokens, else 1."""
    if FAMILY == CHANNEL:
        return 1.0
    else:
        return tl.exp(decay_before(decay, stride, start, None, length, FAMILY, 1))


@triton.jit
def token_decay_after(decay, stride, start, length, FAMILY: tl.constexpr):
    """The same decays if they are of whole tokens, else 1."""
    if FAMILY == CHANNEL:
        return 1.0
    else:
        return tl.exp(decay_after(decay, stride, start, None, length, FAMILY, 1))


@triton.jit
def load_blocks(base, values, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr):
    """The blocks [BK, values] of a contiguous state [K, V], as a tuple."""
    blocks = ()
    for begin in tl.static_range(0, K, BK):
        blocks += (load_state(base, begin + tl.arange(0, BK), values, K, V),)
    return blocks


@triton.jit
def store_blocks(base, blocks, values, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr):
    """The counterpart of `load_blocks`; casts to the type stored."""
    for block in tl.static_range(len(blocks)):
        keys = block * BK + tl.arange(0, BK)
        store_rows(base, V, keys, values, K, blocks[block], V)
