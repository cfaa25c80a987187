"""Weights between the tokens of one tile: q_i . k_j times the decay between j and i.

With one decay per head or token the weights of a tile are one product times a matrix of decays.
With a decay per key channel a tile is halved again and again: see `channel_scores`.
"""

import triton
import triton.language as tl

from kernels.triton.device import (
    CHANNEL,
    HEAD,
    LEVELS,
    NONE,
    TILE,
    dot,
    load_rows,
    load_tokens,
    visible,
)  # fmt: skip


@triton.jit
def scores(
    q, q_stride, k, k_stride, decay, decay_stride, segments, segments_stride, start, length, scale,
    FAMILY: tl.constexpr, SEGMENTS: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    K: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """[TILE, TILE] weights of keys (columns) for queries (rows), summed over all key channels."""
    rows = start + tl.arange(0, TILE)
    result = tl.zeros((TILE, TILE), tl.float32)
    for begin in range(0, K, BK):
        keys = begin + tl.arange(0, BK)
        q_block = load_rows(q, q_stride, rows, keys, length, K)
        k_block = load_rows(k, k_stride, rows, keys, length, K)
        if FAMILY == CHANNEL:
            rates = load_rows(decay, decay_stride, rows, keys, length, K)
            result += channel_scores(
                q_block.to(tl.float32), k_block.to(tl.float32), rates, OPERAND, PRECISION
            )
        else:
            result += dot(q_block, tl.trans(k_block), OPERAND, PRECISION)
    if FAMILY != CHANNEL:
        result *= token_weights(decay, decay_stride, start, length, FAMILY)
    seen = visible(segments, segments_stride, start, length, SEGMENTS)
    return tl.where(seen, result * scale, 0.0)


@triton.jit
def token_weights(decay, decay_stride, start, length, FAMILY: tl.constexpr):
    """[TILE, TILE] decays from key (column) to query (row), 0 above the diagonal."""
    index = tl.arange(0, TILE)
    if FAMILY == NONE:
        spans = tl.zeros((TILE, TILE), tl.float32)
    elif FAMILY == HEAD:
        spans = tl.load(decay) * (index[:, None] - index[None, :])
    else:
        # A sum of its own for every key: differences of one running sum would lose digits.
        rates = load_tokens(decay, decay_stride, start, length)
        spans = tl.cumsum(tl.where(index[:, None] > index[None, :], rates[:, None], 0.0), 0)
    return tl.exp(tl.where(index[:, None] >= index[None, :], spans, float("-inf")))


@triton.jit
def channel_scores(q, k, rates, OPERAND: tl.constexpr, PRECISION: tl.constexpr):
    """The causal weights of q, k [TILE, K] for log-decays `rates` [TILE, K]: [TILE, TILE].

    At level l, blocks of 2^(l+1) rows have their anchor at the end of the left half. Queries of the
    right half carry the decay from there to them, keys of the left half that from them to there.
    Both are at most 1 and their product is the wanted weight. Whether two rows i > j belong to
    this level is seen from i xor j, whose highest bit is then bit l.
    """
    index = tl.arange(0, TILE)
    result = tl.where(index[:, None] == index[None, :], tl.sum(q * k, 1)[:, None], 0.0)
    before, after = rates, tl.zeros_like(rates)
    for level in tl.range(LEVELS, loop_unroll_factor=1, num_stages=1):
        decayed = halves(q, k, index, level) * tl.exp(halves(before, after, index, level))
        products = dot(decayed, tl.trans(decayed), OPERAND, PRECISION)
        at_level = (differ(index, level) == 1) & (index[:, None] > index[None, :])
        result += tl.where(at_level, products, 0.0)
        before, after = merge(before, after, index, level)
    return result


@triton.jit
def differ(index, level):
    """[TILE, TILE] bits from `level` on in which two rows differ: 0 in one half, 1 in one block.

    Made from two vectors in every level: kept, the matrix would cost registers.
    """
    blocks = index >> level
    return blocks[:, None] ^ blocks[None, :]


@triton.jit
def halves(right, left, index, level):
    """Rows of `right` in right halves of the level's blocks, of `left` in left ones."""
    return tl.where((((index >> level) & 1) == 1)[:, None], right, left)


@triton.jit
def merge(before, after, index, level):
    """Sums of log-decays up to and after each row, from blocks of 2^l rows to twice as many."""
    in_right = ((index >> level) & 1) == 1
    # The whole sum of the other half: at its last row, `before` is the sum over all of it.
    last = (index | ((2 << level) - 1)) - tl.where(in_right, 1 << level, 0)
    other = tl.gather(before, tl.broadcast_to(last[:, None], before.shape), 0)
    before += tl.where(in_right[:, None], other, 0.0)
    after += tl.where(in_right[:, None], 0.0, other)
    return before, after
