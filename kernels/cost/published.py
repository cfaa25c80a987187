"""The same accounting for the published chunk-64 algorithm that keeps all states in memory.

Yang et al., Gated Linear Attention (ICML 2024), the materialised version. Counted from what the
authors' code does, github.com/fla-org/flash-linear-attention:

- decays per channel: fla/ops/gla/chunk.py at 07784bc0
- other decays: fla/ops/simple_gla/chunk.py at 07784bc0, which fla/ops/retention/chunk.py and
  fla/ops/linear_attn/chunk.py (both at 0315a70e) call
- their parts: fla/ops/common/chunk_h.py at 0315a70e, fla/ops/common/chunk_o.py at 07815769,
  fla/ops/utils/cumsum.py at 033b0035

States are written per 64 tokens: in the input type in the forward pass, and again, recomputed, in
float32 in the backward pass beside their float32 gradients. Decays are float32, as ours are. Where
the code has a choice, the one that moves fewer bytes is counted: no final state, the largest blocks
it tries (128; one part of a scalar decay's gradient instead of two).
"""

from math import ceil

from kernels.cost.accounting import FLOAT32, Access, Direction, Kernel, Shape, access

BLOCK = 128
SUBCHUNK = 16  # of the scores with a decay per channel


def published_kernels(shape: Shape) -> list[Kernel]:
    """All launches of one forward and backward pass, in order.

    Raises ValueError for normalised outputs, which none of these kernels computes.
    """
    if shape.normalize:
        raise ValueError("the published kernels compute no denominators: use normalize=False")
    rows = Rows(shape)
    return _channel_kernels(rows) if shape.decay == "channel" else _simple_kernels(rows)


class Rows:
    """Tensors and products, in elements and FLOPs."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.chunk = min(64, max(16, 1 << (shape.length - 1).bit_length()))
        heads = shape.batch * shape.heads
        chunks = heads * ceil(shape.length / self.chunk)
        key_width, value_width = shape.key_width, shape.value_width
        self.tokens = heads * shape.length
        self.pairs = chunks * self.chunk**2  # full chunks, masked halves included
        self.states = chunks * key_width * value_width
        # Of the scores [B, T, H, chunk]: those in blocks of 16 x 16 below the diagonal ones, and
        # those with the diagonal ones.
        full, rest = divmod(shape.length, self.chunk)
        self.strictly_lower = heads * (full * _below_diagonal(self.chunk) + _below_diagonal(rest))
        self.lower = self.strictly_lower + self.tokens * SUBCHUNK

    def tensor(self, name: str, width: int | None = None) -> Access:
        """q, k, v or o and their gradients, in the input type unless `width` bytes are given."""
        axes = "bthv" if name[-1] in "vo" else "bthk"
        return access(name, self.shape.elements(axes), width or self.shape.input_bytes)

    def tensors(self, names: str) -> list[Access]:
        return [self.tensor(name) for name in names.split()]

    def decay(self, name: str = "summed decay") -> list[Access]:
        """A decay per token, its sums inside chunks, or a gradient of either."""
        axes = self.shape.decay_axes
        return [access(name, self.shape.elements(axes), FLOAT32)] if axes else []

    def state(self, name: str, width: int) -> Access:
        return access(name, self.states, width)

    def scores(self, name: str, elements: int | None = None) -> Access:
        """[B, T, H, chunk] float32, or the part of it that is touched."""
        full = self.tokens * self.chunk
        return access(name, full if elements is None else elements, FLOAT32)

    def with_states(self) -> float:
        return 2.0 * self.tokens * self.shape.key_width * self.shape.value_width

    def within_chunks(self, width: int) -> float:
        return 2.0 * self.pairs * width

    def kernel(
        self,
        name: str,
        direction: Direction,
        reads: list[Access],
        writes: list[Access],
        products: float = 0.0,
        tf32: float = 0.0,
        vector: float = 0.0,
    ) -> Kernel:
        """`products` have operands of the input type; float32 ones run as TF32."""
        if self.shape.input_bytes == FLOAT32:
            products, tf32 = 0.0, tf32 + products
        return Kernel(name, direction, tuple(reads), tuple(writes), products, tf32, vector)


def _below_diagonal(tokens: int) -> int:
    """Columns to the left of a token's own block of 16, summed over the tokens of a chunk."""
    return sum(token // SUBCHUNK * SUBCHUNK for token in range(tokens))


def _simple_kernels(rows: Rows) -> list[Kernel]:
    """No decay, a decay per head, or a scalar per token."""
    shape, e = rows.shape, rows.shape.input_bytes
    key_width, value_width = shape.key_width, shape.value_width
    learned = shape.decay == "scalar"
    key_blocks, value_blocks = ceil(key_width / BLOCK), ceil(value_width / BLOCK)
    decayed = 0.0 if shape.decay == "none" else 1.0
    weigh_keys = decayed * rows.tokens * key_width
    weigh_values = decayed * rows.tokens * value_width
    weigh_pairs = decayed * 3 * rows.pairs  # subtract, exponential, multiply
    weigh_states = decayed * rows.states
    sums = [access("d summed decay, parts", rows.tokens * key_blocks, FLOAT32)] if learned else []
    forward_cumsum = [
        rows.kernel(
            "chunk_local_cumsum", "forward", rows.decay("decay"), rows.decay(), vector=rows.tokens
        )
    ]
    backward_cumsum = [
        rows.kernel("sum of parts", "backward", sums, rows.decay("d summed decay")),
        rows.kernel(
            "chunk_local_cumsum, reverse",
            "backward",
            rows.decay("d summed decay"),
            rows.decay("d decay"),
            vector=rows.tokens,
        ),
    ]
    return [
        *(forward_cumsum if learned else []),
        rows.kernel(
            "chunk_fwd_h",
            "forward",
            rows.tensors("k v") + rows.decay(),
            [rows.state("h", e)],
            rows.with_states(),
            vector=weigh_values + weigh_states,
        ),
        rows.kernel(
            "chunk_fwd_o",
            "forward",
            rows.tensors("q k v") + rows.decay() + [rows.state("h", e)],
            rows.tensors("o"),
            rows.with_states()
            + value_blocks * rows.within_chunks(key_width)
            + rows.within_chunks(value_width),
            vector=weigh_values + value_blocks * weigh_pairs,
        ),
        rows.kernel(
            "chunk_fwd_h, again",
            "backward",
            rows.tensors("k v") + rows.decay(),
            [rows.state("h", FLOAT32)],
            rows.with_states(),
            vector=weigh_values + weigh_states,
        ),
        rows.kernel(
            "chunk_bwd_dh",
            "backward",
            rows.tensors("q do") + rows.decay(),
            [rows.state("dh", FLOAT32)],
            rows.with_states(),
            vector=weigh_keys + weigh_states,
        ),
        rows.kernel(
            "chunk_bwd_dqkwg",
            "backward",
            [
                *rows.tensors("q k v do"),
                *rows.decay(),
                rows.state("h", FLOAT32),
                rows.state("dh", FLOAT32),
            ],
            rows.tensors("dq dk") + sums,
            2 * rows.with_states()
            + key_blocks * rows.within_chunks(value_width)
            + (3 if learned else 2) * rows.within_chunks(key_width),
            vector=2 * weigh_keys
            + key_blocks * weigh_pairs
            + (2.0 * rows.states + 4.0 * rows.tokens * key_width if learned else 0.0),
        ),
        rows.kernel(
            "chunk_bwd_dv",
            "backward",
            rows.tensors("q k do") + rows.decay() + [rows.state("dh", FLOAT32)],
            rows.tensors("dv"),
            rows.with_states()
            + value_blocks * rows.within_chunks(key_width)
            + rows.within_chunks(value_width),
            vector=weigh_values + value_blocks * weigh_pairs,
        ),
        *(backward_cumsum if learned else []),
    ]


def _channel_kernels(rows: Rows) -> list[Kernel]:
    """A decay per key channel and token; scores A and their gradients dA are written out."""
    shape, e = rows.shape, rows.shape.input_bytes
    key_width, value_width = shape.key_width, shape.value_width
    weigh = 3.0 * rows.tokens * key_width  # subtract, exponential, multiply
    weigh_states = float(rows.states)
    # Blocks of 16 x 16: those below the diagonal are TF32 products of weighed operands, those
    # on it are summed pair by pair: two multiplications, a subtraction, an exponential, a sum.
    below = 2.0 * rows.strictly_lower * key_width
    diagonal = 5.0 * (rows.lower - rows.strictly_lower) * key_width
    casts = [
        rows.kernel(
            "cast of dq and dk",
            "backward",
            [rows.tensor("dq", FLOAT32), rows.tensor("dk", FLOAT32)],
            rows.tensors("dq dk"),
        )
    ]
    return [
        rows.kernel(
            "chunk_local_cumsum",
            "forward",
            rows.decay("decay"),
            rows.decay(),
            vector=float(rows.tokens * key_width),
        ),
        rows.kernel(
            "chunk_fwd_h",
            "forward",
            rows.tensors("k v") + rows.decay(),
            [rows.state("h", e)],
            rows.with_states(),
            vector=weigh + weigh_states,
        ),
        rows.kernel(
            "fwd_A, below diagonal",
            "forward",
            rows.tensors("q k") + rows.decay(),
            [rows.scores("A", rows.strictly_lower)],
            tf32=below,
            vector=2 * weigh,
        ),
        *_diagonal_scores(rows, diagonal),
        rows.kernel("zeros of o", "forward", [], rows.tensors("o")),
        rows.kernel(
            "chunk_gla_fwd_o",
            "forward",
            rows.tensors("q v") + rows.decay() + [rows.state("h", e), rows.scores("A")],
            rows.tensors("o"),
            rows.with_states() + rows.within_chunks(value_width),
            vector=2.0 * rows.tokens * key_width,
        ),
        rows.kernel(
            "chunk_fwd_h, again",
            "backward",
            rows.tensors("k v") + rows.decay(),
            [rows.state("h", FLOAT32)],
            rows.with_states(),
            vector=weigh + weigh_states,
        ),
        rows.kernel(
            "chunk_bwd_dh",
            "backward",
            rows.tensors("q do") + rows.decay(),
            [rows.state("dh", FLOAT32)],
            rows.with_states(),
            vector=2.0 * rows.tokens * key_width + weigh_states,
        ),
        rows.kernel(
            "chunk_gla_bwd_dv",
            "backward",
            rows.tensors("k do") + rows.decay() + [rows.state("dh", FLOAT32), rows.scores("A")],
            rows.tensors("dv"),
            rows.with_states(),
            # A^T do is a float32 product with TF32 switched off.
            vector=weigh + rows.within_chunks(value_width),
        ),
        rows.kernel(
            "chunk_gla_bwd_dA",
            "backward",
            rows.tensors("v do"),
            [rows.scores("dA")],
            rows.within_chunks(value_width),
        ),
        rows.kernel(
            "chunk_gla_bwd_intra",
            "backward",
            rows.tensors("q k") + rows.decay() + [rows.scores("dA", rows.lower)],
            [rows.tensor("dq", FLOAT32), rows.tensor("dk", FLOAT32)],
            tf32=2 * below,
            vector=2 * diagonal + 4 * weigh,
        ),
        rows.kernel(
            "chunk_gla_bwd_inter",
            "backward",
            [
                *rows.tensors("q k v do"),
                *rows.decay(),
                rows.state("h", FLOAT32),
                rows.state("dh", FLOAT32),
                rows.tensor("dq", FLOAT32),
                rows.tensor("dk", FLOAT32),
            ],
            [
                rows.tensor("dq", FLOAT32),
                rows.tensor("dk", FLOAT32),
                *rows.decay("d decay"),
            ],
            2 * rows.with_states(),
            vector=2 * weigh + 2.0 * rows.states + 4.0 * rows.tokens * key_width,
        ),
        *(casts if e != FLOAT32 else []),
    ]


def _diagonal_scores(rows: Rows, operations: float) -> list[Kernel]:
    """Wide keys are summed in parts of 128 channels, which a second kernel adds up."""
    inputs = rows.tensors("q k") + rows.decay()
    size = rows.lower - rows.strictly_lower
    result = [rows.scores("A", size)]
    if rows.shape.key_width <= 2 * BLOCK:
        return [rows.kernel("fwd_A, diagonal", "forward", inputs, result, vector=operations)]
    count = ceil(rows.shape.key_width / BLOCK)
    parts = [rows.scores("A, parts", count * size)]
    return [
        rows.kernel("fwd_A, diagonal, parts", "forward", inputs, parts, vector=operations),
        rows.kernel("fwd_A, diagonal, sum", "forward", parts, result, vector=float(count * size)),
    ]
