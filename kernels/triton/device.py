"""Device functions that every kernel shares: loads, decay sums, document masks, states of tiles.

A program works on one tile of TILE tokens. Sums of log-decays start anew at every tile, and inside
a tile at every block border where per-channel decays need it: no exponent is ever positive, and no
two long sums are subtracted from each other.

Axis letters: TILE tokens of a tile, K key channels of a block, V value channels of a block.
"""

import triton
import triton.language as tl

from kernels.state import LEAST_DENOMINATOR

TILE = tl.constexpr(64)
LEVELS = tl.constexpr(6)  # halvings of a tile
LEAST = tl.constexpr(LEAST_DENOMINATOR)

# Arguments that change with length or batch: their values must not select a program. (Strides of
# the wide tensors do: they are multiples of 16 at any length, and loads rely on it.)
VARYING = (
    "length", "num_chunks", "chunk_tiles", "rows_in_all", "decay_sb", "decay_st", "decay_sh",
    "beta_sb", "beta_st", "beta_sh", "segments_sb", "weights_sb", "weights_st",
    "d_denominators_sb", "d_denominators_st",
)  # fmt: skip

# Decay families.
NONE, HEAD, TOKEN, CHANNEL = (tl.constexpr(number) for number in range(4))


@triton.jit
def place(BLOCKS: tl.constexpr, parts, heads):
    """(block, part, row, batch, head) of this program: blocks next to each other share a part.

    A part is a tile or a chunk of a row; a row is one head of one batch entry. The last three are
    64-bit, for offsets.
    """
    program = tl.program_id(0)
    row = (program // BLOCKS // parts).to(tl.int64)
    return program % BLOCKS, program // BLOCKS % parts, row, row // heads, row % heads


@triton.jit
def dot(x, y, OPERAND: tl.constexpr, PRECISION: tl.constexpr):
    """x @ y in float32 sums. 16-bit operands ignore PRECISION."""
    if PRECISION == "split":
        return add_dot(tl.zeros((x.shape[0], y.shape[1]), tl.float32), x, y, OPERAND, PRECISION)
    else:
        return tl.dot(x.to(OPERAND), y.to(OPERAND), input_precision=PRECISION)


@triton.jit
def add_dot(total, x, y, OPERAND: tl.constexpr, PRECISION: tl.constexpr):
    """total + x @ y.

    With PRECISION "split" a float32 operand is two bfloat16 numbers, 16 bits: what rounding leaves
    out is multiplied too. An operand that is bfloat16 is multiplied once, as it is.
    """
    if PRECISION == "split":
        x_first, y_first = x.to(tl.bfloat16), y.to(tl.bfloat16)
        if y.dtype != tl.bfloat16:
            y_rest = (y.to(tl.float32) - y_first.to(tl.float32)).to(tl.bfloat16)
            total = tl.dot(x_first, y_rest, total)
        if x.dtype != tl.bfloat16:
            x_rest = (x.to(tl.float32) - x_first.to(tl.float32)).to(tl.bfloat16)
            total = tl.dot(x_rest, y_first, total)
        return tl.dot(x_first, y_first, total)
    else:
        return tl.dot(x.to(OPERAND), y.to(OPERAND), total, input_precision=PRECISION)


@triton.jit
def load_rows(base, stride, rows, columns, length, WIDTH: tl.constexpr):
    """[rows, columns] of a matrix with contiguous rows; 0 outside of [0, length) x [0, WIDTH)."""
    inside = (rows[:, None] < length) & (columns[None, :] < WIDTH)
    offsets = rows[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(base + offsets, mask=inside, other=0.0)


@triton.jit
def store_rows(base, stride, rows, columns, length, values, WIDTH: tl.constexpr):
    """The counterpart of `load_rows`; casts to the type stored."""
    inside = (rows[:, None] < length) & (columns[None, :] < WIDTH)
    offsets = rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(base + offsets, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def load_tokens(base, stride, start, length):
    """[TILE] numbers of the tile's tokens; 0 past the end."""
    rows = start + tl.arange(0, TILE)
    return tl.load(base + rows.to(tl.int64) * stride, mask=rows < length, other=0.0)


@triton.jit
def load_tile(base, number):
    """[TILE, TILE] of the pairs of tile `number`, counted over all rows."""
    index = tl.arange(0, TILE)
    return tl.load(base + number * TILE * TILE + index[:, None] * TILE + index[None, :])


@triton.jit
def store_tile(base, number, pairs):
    """The counterpart of `load_tile`; casts to the type stored."""
    index = tl.arange(0, TILE)
    at = number * TILE * TILE + index[:, None] * TILE + index[None, :]
    tl.store(base + at, pairs.to(base.dtype.element_ty))


@triton.jit
def load_state(base, keys, values, K: tl.constexpr, V: tl.constexpr):
    """[keys, values] block of a contiguous state [K, V], float32."""
    inside = (keys[:, None] < K) & (values[None, :] < V)
    return tl.load(base + keys[:, None] * V + values[None, :], mask=inside, other=0.0).to(
        tl.float32
    )


@triton.jit
def load_channels(base, keys, K: tl.constexpr):
    """[keys] of a contiguous vector [K], float32."""
    return tl.load(base + keys, mask=keys < K, other=0.0).to(tl.float32)


@triton.jit
def decay_before(decay, stride, start, keys, length, FAMILY: tl.constexpr, K: tl.constexpr):
    """Log-decays from the start of the tile up to each row, its own included: [TILE, K or 1]."""
    index = tl.arange(0, TILE)
    rows = start + index
    if FAMILY == NONE:
        return tl.zeros((TILE, 1), tl.float32)
    elif FAMILY == HEAD:
        return (tl.load(decay) * (index + 1))[:, None]
    elif FAMILY == TOKEN:
        rates = load_tokens(decay, stride, start, length)
        return tl.cumsum(rates, 0)[:, None]
    else:
        return tl.cumsum(load_rows(decay, stride, rows, keys, length, K), 0)


@triton.jit
def decay_after(decay, stride, start, keys, length, FAMILY: tl.constexpr, K: tl.constexpr):
    """Log-decays after each row up to the end of the tile: [TILE, K or 1]."""
    index = tl.arange(0, TILE)
    # The sum over later rows is a running sum of the rows' successors from the end.
    rows = tl.where(index + 1 < TILE, start + index + 1, length)
    if FAMILY == NONE:
        return tl.zeros((TILE, 1), tl.float32)
    elif FAMILY == HEAD:
        last = tl.minimum(length - start, TILE) - 1
        return (tl.load(decay) * tl.maximum(last - index, 0))[:, None]
    elif FAMILY == TOKEN:
        rates = tl.load(decay + rows.to(tl.int64) * stride, mask=rows < length, other=0.0)
        return tl.cumsum(rates, 0, reverse=True)[:, None]
    else:
        return tl.cumsum(load_rows(decay, stride, rows, keys, length, K), 0, reverse=True)


@triton.jit
def decay_whole(decay, stride, start, keys, length, FAMILY: tl.constexpr, K: tl.constexpr):
    """Log-decays of the whole tile: [K or 1]."""
    rows = start + tl.arange(0, TILE)
    if FAMILY == NONE:
        return tl.zeros((1,), tl.float32)
    elif FAMILY == HEAD:
        return tl.load(decay) * tl.minimum(length - start, TILE) + tl.zeros((1,), tl.float32)
    elif FAMILY == TOKEN:
        rates = load_tokens(decay, stride, start, length)
        return tl.sum(rates, 0) + tl.zeros((1,), tl.float32)
    else:
        return tl.sum(load_rows(decay, stride, rows, keys, length, K), 0)


@triton.jit
def document_before(segments, stride, first, start):
    """Document number of the token before `start`; of the incoming state at the row's start."""
    before = tl.load(first)
    if start > 0:
        before = tl.load(segments + (start - 1).to(tl.int64) * stride)
    return before


@triton.jit
def document_last(segments, stride, end, length):
    """Document number of the last token before `end`."""
    return tl.load(segments + (tl.minimum(end, length) - 1).to(tl.int64) * stride)


@triton.jit
def visible(segments, stride, start, length, SEGMENTS: tl.constexpr):
    """Which key (column) of the tile each query (row) may see: causal, same document."""
    index = tl.arange(0, TILE)
    seen = index[:, None] >= index[None, :]
    if SEGMENTS:
        rows = start + index
        numbers = tl.load(segments + rows.to(tl.int64) * stride, mask=rows < length, other=0)
        seen = seen & (numbers[:, None] == numbers[None, :])
    return seen


@triton.jit
def reach_in(segments, stride, first, start, length, SEGMENTS: tl.constexpr):
    """1.0 for rows of the document that the tile's incoming state belongs to: [TILE, 1]."""
    if not SEGMENTS:
        return tl.full((TILE, 1), 1.0, tl.float32)
    else:
        rows = start + tl.arange(0, TILE)
        numbers = tl.load(segments + rows.to(tl.int64) * stride, mask=rows < length, other=0)
        before = document_before(segments, stride, first, start)
        return tl.where(numbers == before, 1.0, 0.0)[:, None]


@triton.jit
def reach_out(segments, stride, start, length, SEGMENTS: tl.constexpr):
    """1.0 for rows of the document that the tile's outgoing state belongs to: [TILE, 1]."""
    if not SEGMENTS:
        return tl.full((TILE, 1), 1.0, tl.float32)
    else:
        rows = start + tl.arange(0, TILE)
        numbers = tl.load(segments + rows.to(tl.int64) * stride, mask=rows < length, other=0)
        last = document_last(segments, stride, start + TILE, length)
        return tl.where(numbers == last, 1.0, 0.0)[:, None]


@triton.jit
def carried(segments, stride, first, start, end, length, SEGMENTS: tl.constexpr):
    """1.0 if the document before `start` is still going on at `end`, else 0.0."""
    if not SEGMENTS:
        return 1.0
    else:
        before = document_before(segments, stride, first, start)
        last = document_last(segments, stride, end, length)
        return tl.where(before == last, 1.0, 0.0)


@triton.jit
def pass_tile(
    state, sums, x, x_stride, y, y_stride, decay, decay_stride,
    segments, segments_stride, first, weights, weights_stride,
    tile, keys, values, length, scale,
    BACKWARD: tl.constexpr, FAMILY: tl.constexpr, NORMALIZE: tl.constexpr, SEGMENTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Takes a state [K, V] and its sums [K] past one tile.

    Forwards: x, y are keys and values; the state after the tile from the one before it.
    Backwards: x, y are queries (times scale) and output gradients; the gradient of the state before
    the tile from that of the state after it, weights being the denominators' gradients.
    """
    start = tile * TILE
    rows = start + tl.arange(0, TILE)
    whole = decay_whole(decay, decay_stride, start, keys, length, FAMILY, K)
    if BACKWARD:
        between = decay_before(decay, decay_stride, start, keys, length, FAMILY, K)
        reach = reach_in(segments, segments_stride, first, start, length, SEGMENTS) * scale
    else:
        between = decay_after(decay, decay_stride, start, keys, length, FAMILY, K)
        reach = reach_out(segments, segments_stride, start, length, SEGMENTS)
    kept = carried(segments, segments_stride, first, start, start + TILE, length, SEGMENTS)
    kept = kept * tl.exp(whole)
    left = load_rows(x, x_stride, rows, keys, length, K).to(tl.float32) * (tl.exp(between) * reach)
    right = load_rows(y, y_stride, rows, values, length, V)
    state = add_dot(state * kept[:, None], tl.trans(left), right, OPERAND, PRECISION)
    if NORMALIZE:
        if BACKWARD:
            weight = load_tokens(weights, weights_stride, start, length)
            sums = sums * kept + tl.sum(left * weight[:, None], 0)
        else:
            sums = sums * kept + tl.sum(left, 0)
    return state, sums


@triton.jit
def add_reading(
    d_state, x, x_stride, y, y_stride, decay, decay_stride, segments, segments_stride, first,
    tile, keys, values, length, scale,
    FAMILY: tl.constexpr, SEGMENTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Adds to the gradient of the state before a tile what a second kind of queries read of it."""
    start = tile * TILE
    rows = start + tl.arange(0, TILE)
    between = decay_before(decay, decay_stride, start, keys, length, FAMILY, K)
    reach = reach_in(segments, segments_stride, first, start, length, SEGMENTS) * scale
    left = load_rows(x, x_stride, rows, keys, length, K).to(tl.float32) * (tl.exp(between) * reach)
    right = load_rows(y, y_stride, rows, values, length, V)
    return add_dot(d_state, tl.trans(left), right, OPERAND, PRECISION)
