"""The same accounting for the published chunk-64 algorithms of the delta rule.

Yang et al., Gated Delta Networks (ICLR 2025), and Kimi Linear (2025) for decays per channel, the
versions that recompute in the backward pass. Counted from what the authors' code does,
github.com/fla-org/flash-linear-attention 0.6.0: fla/ops/gated_delta_rule, fla/ops/delta_rule and
fla/ops/kda with their parts in fla/ops/common and fla/ops/utils.

States are written per 64 tokens in the input type, forward and again backward, with their
gradients. A is the inverse of a chunk's triangular matrix, w and u are keys and values times it.
Where the code has a choice, the one that moves fewer bytes is counted.
"""

from math import ceil

from kernels.cost.accounting import FLOAT32, Access, Direction, Kernel, Shape, access
from kernels.cost.published import BLOCK, SUBCHUNK, Rows

SMALL = 32  # key channels of a program of the backward pass inside chunks, for decays per channel
VALUE_WIDE = ("v", "u", "v_new", "o", "do", "du", "dv", "dv2")
MERGING = 16  # products of 16 x 16 blocks that merge four inverted diagonal blocks


def published_delta_kernels(shape: Shape) -> list[Kernel]:
    """All launches of one forward and backward pass, in order.

    Raises ValueError for decays per head, which none of these kernels takes.
    """
    if shape.decay == "head":
        raise ValueError("the published delta rule takes no decay [H]: use decay='scalar'")
    rows = Rows(shape)
    return _channel_kernels(rows) if shape.decay == "channel" else _scalar_kernels(rows)


def _beta(rows: Rows, name: str = "beta", parts: int = 1) -> Access:
    return access(name, rows.tokens * parts, FLOAT32)


def _pairs(rows: Rows, name: str, elements: int | None = None) -> Access:
    """[B, T, H, chunk] in the input type, or the part of it that is touched."""
    full = rows.tokens * rows.chunk
    return access(name, full if elements is None else elements, rows.shape.input_bytes)


def _merging(rows: Rows) -> float:
    """FLOPs of the TF32 products that merge inverted blocks, for chunks of 64."""
    chunks = rows.pairs // rows.chunk**2
    return chunks * MERGING * 2.0 * SUBCHUNK**3


def _substitution(rows: Rows) -> float:
    """Vector operations of forward substitution in blocks of 16 x 16: a multiply and an add."""
    return 2.0 * rows.tokens * SUBCHUNK * SUBCHUNK


def _tensors(rows: Rows, names: str) -> list[Access]:
    """q, k, v and so on in the input type, by name: v-wide or k-wide."""
    shape = rows.shape
    return [
        access(name, shape.elements("bthv" if name in VALUE_WIDE else "bthk"), shape.input_bytes)
        for name in names.split()
    ]


def _scalar_kernels(rows: Rows) -> list[Kernel]:
    """No decay, or a scalar per token (`chunk_gated_delta_rule`)."""
    shape, e = rows.shape, rows.shape.input_bytes
    key_width, value_width = shape.key_width, shape.value_width
    gated = shape.decay == "scalar"
    g = rows.decay()
    key_blocks, value_blocks = ceil(key_width / BLOCK), ceil(value_width / BLOCK)
    pairs = 3.0 * rows.pairs if gated else 0.0  # subtract, exponential, multiply
    states = float(rows.states) if gated else 0.0
    weigh = float(rows.tokens * value_width) if gated else 0.0
    beta = _beta(rows)
    parts = [access("dg, parts", rows.tokens * key_blocks, FLOAT32)] if gated else []

    def wy(direction: Direction) -> Kernel:
        return rows.kernel(
            "recompute_w_u" + (", again" if direction == "backward" else ""),
            direction,
            [*_tensors(rows, "k v"), beta, *g, _pairs(rows, "A")],
            _tensors(rows, "w u"),
            rows.within_chunks(key_width) + rows.within_chunks(value_width),
            vector=float(rows.tokens * (key_width + value_width)),
        )

    def states_of(direction: Direction) -> Kernel:
        return rows.kernel(
            "chunk_fwd_h" + (", again" if direction == "backward" else ""),
            direction,
            _tensors(rows, "k w u") + g,
            [rows.state("h", e), *_tensors(rows, "v_new")],
            2 * rows.with_states(),
            vector=weigh + states + rows.tokens * value_width,
        )

    if gated:
        inverse = [
            rows.kernel("zeros of A", "forward", [], [_pairs(rows, "A")]),
            rows.kernel(
                "kkt_solve",
                "forward",
                [*_tensors(rows, "k"), beta, *g],
                [_pairs(rows, "A", rows.lower)],
                2.0 * rows.lower * key_width,
                tf32=_merging(rows),
                vector=_substitution(rows) + pairs,
            ),
        ]
    else:
        inverse = [
            rows.kernel(
                "chunk_scaled_dot_kkt",
                "forward",
                [*_tensors(rows, "k"), beta],
                [rows.scores("kkt")],
                rows.within_chunks(key_width),
            ),
            rows.kernel("zeros of A", "forward", [], [_pairs(rows, "A")]),
            rows.kernel(
                "solve_tril",
                "forward",
                [rows.scores("kkt", rows.lower)],
                [_pairs(rows, "A", rows.lower)],
                tf32=_merging(rows),
                vector=_substitution(rows),
            ),
        ]
    cumsum = rows.kernel(
        "chunk_local_cumsum", "forward", rows.decay("decay"), g, vector=float(rows.tokens)
    )
    d_decay = [
        rows.kernel("sum of parts", "backward", parts, rows.decay("dg")),
        rows.kernel(
            "sum of dg", "backward", rows.decay("dg") + rows.decay("dg2"), rows.decay("dg")
        ),
        rows.kernel(
            "chunk_local_cumsum, reverse",
            "backward",
            rows.decay("dg"),
            rows.decay("d decay"),
            vector=float(rows.tokens),
        ),
    ]
    return [
        *([cumsum] if gated else []),
        *inverse,
        wy("forward"),
        states_of("forward"),
        rows.kernel(
            "chunk_fwd_o",
            "forward",
            [*_tensors(rows, "q k v_new"), *g, rows.state("h", e)],
            _tensors(rows, "o"),
            rows.with_states()
            + value_blocks * rows.within_chunks(key_width)
            + rows.within_chunks(value_width),
            vector=weigh + value_blocks * pairs,
        ),
        wy("backward"),
        states_of("backward"),
        rows.kernel(
            "chunk_bwd_dv_local",
            "backward",
            _tensors(rows, "q k do") + g,
            _tensors(rows, "dv"),
            rows.within_chunks(key_width) + rows.within_chunks(value_width),
            vector=pairs,
        ),
        rows.kernel(
            "chunk_bwd_dhu",
            "backward",
            _tensors(rows, "q k w do dv") + g,
            [rows.state("dh", e), *_tensors(rows, "dv2")],
            3 * rows.with_states(),
            vector=2 * weigh + states,
        ),
        rows.kernel(
            "chunk_bwd_dqkwg",
            "backward",
            [*_tensors(rows, "q k v_new w do dv2"), *g, rows.state("h", e), rows.state("dh", e)],
            _tensors(rows, "dq dk dw") + parts,
            3 * rows.with_states()
            + key_blocks * rows.within_chunks(value_width)
            + 2 * rows.within_chunks(key_width),
            vector=key_blocks * pairs + (4.0 * rows.tokens * key_width if gated else 0.0),
        ),
        rows.kernel(
            "prepare_wy_repr_bwd",
            "backward",
            [*_tensors(rows, "k v dw dv2"), beta, *g, _pairs(rows, "A")],
            [*_tensors(rows, "dk2 du"), _beta(rows, "d beta"), *(rows.decay("dg2") if g else [])],
            5 * rows.within_chunks(key_width)
            + 2 * rows.within_chunks(value_width)
            + 2 * rows.within_chunks(rows.chunk),
            vector=4.0 * rows.tokens * key_width + 2.0 * rows.tokens * value_width,
        ),
        rows.kernel("sum of dk", "backward", _tensors(rows, "dk dk2"), _tensors(rows, "dk")),
        *(d_decay if gated else []),
    ]


def _channel_kernels(rows: Rows) -> list[Kernel]:
    """A decay per key channel and token (`chunk_kda`)."""
    shape, e = rows.shape, rows.shape.input_bytes
    key_width, value_width = shape.key_width, shape.value_width
    weigh = 3.0 * rows.tokens * key_width
    states = float(rows.states)
    g, beta = rows.decay(), _beta(rows)
    # States are weighed by the last row of every chunk only.
    last = access(g[0].name, rows.states // value_width, FLOAT32)
    # Of both Aqk and Akk: below the diagonal products, on it pair by pair.
    below = 2 * 2.0 * rows.strictly_lower * key_width
    diagonal = 2 * 5.0 * (rows.lower - rows.strictly_lower) * key_width
    on_diagonal = rows.lower - rows.strictly_lower
    blocks = ceil(key_width / SMALL)

    def wy(direction: Direction) -> Kernel:
        again = direction == "backward"
        return rows.kernel(
            "recompute_w_u" + (", again" if again else ""),
            direction,
            [*_tensors(rows, "q k v" if again else "k v"), beta, *g, _pairs(rows, "Akk")],
            _tensors(rows, "w u kg qg" if again else "w u kg"),
            rows.within_chunks(key_width) + rows.within_chunks(value_width),
            vector=(3 if again else 2) * weigh,
        )

    def states_of(direction: Direction) -> Kernel:
        return rows.kernel(
            "chunk_fwd_h" + (", again" if direction == "backward" else ""),
            direction,
            [*_tensors(rows, "kg w u"), last],
            [rows.state("h", e), *_tensors(rows, "v_new")],
            2 * rows.with_states(),
            vector=states + rows.tokens * value_width,
        )

    def wide(names: str) -> list[Access]:
        return [access(name, shape.elements("bthk"), FLOAT32) for name in names.split()]

    return [
        rows.kernel(
            "chunk_local_cumsum",
            "forward",
            rows.decay("decay"),
            g,
            vector=float(rows.tokens * key_width),
        ),
        rows.kernel("zeros of Akk", "forward", [], [_pairs(rows, "Akk")]),
        rows.kernel(
            "intra_token_parallel",
            "forward",
            [*_tensors(rows, "q k"), *g, beta],
            [_pairs(rows, "Aqk", on_diagonal), access("Akk, diagonal", on_diagonal, FLOAT32)],
            vector=diagonal,
        ),
        rows.kernel(
            "inter_solve_fused",
            "forward",
            [*_tensors(rows, "q k"), *g, beta, access("Akk, diagonal", on_diagonal, FLOAT32)],
            [_pairs(rows, "Aqk", rows.strictly_lower), _pairs(rows, "Akk", rows.lower)],
            tf32=below + _merging(rows),
            vector=_substitution(rows) + 2 * weigh,
        ),
        wy("forward"),
        states_of("forward"),
        rows.kernel(
            "chunk_gla_fwd_o",
            "forward",
            [*_tensors(rows, "q v_new"), *g, rows.state("h", e), _pairs(rows, "Aqk")],
            _tensors(rows, "o"),
            rows.with_states() + rows.within_chunks(value_width),
            vector=2.0 * rows.tokens * key_width,
        ),
        wy("backward"),
        states_of("backward"),
        rows.kernel(
            "chunk_kda_bwd_dAv",
            "backward",
            [*_tensors(rows, "v_new do"), _pairs(rows, "Aqk")],
            [rows.scores("dAqk"), *_tensors(rows, "dv")],
            2 * rows.within_chunks(value_width),
        ),
        rows.kernel(
            "chunk_bwd_dhu",
            "backward",
            [*_tensors(rows, "qg kg w do dv"), last],
            [rows.state("dh", e), *_tensors(rows, "dv2")],
            3 * rows.with_states(),
            vector=states,
        ),
        rows.kernel(
            "wy_dqkg_fused",
            "backward",
            [
                *_tensors(rows, "q k v v_new do dv2"),
                *g,
                beta,
                _pairs(rows, "Akk"),
                rows.state("h", e),
                rows.state("dh", e),
            ],
            [
                *wide("dq dk dg"),
                *_tensors(rows, "du"),
                _beta(rows, "d beta"),
                rows.scores("dAkk"),
            ],
            3 * rows.with_states()
            + 2 * rows.within_chunks(value_width)
            + 2 * rows.within_chunks(key_width)
            + 2 * rows.within_chunks(rows.chunk),
            vector=2 * weigh + 2 * states + 8.0 * rows.tokens * key_width,
        ),
        rows.kernel(
            "chunk_kda_bwd_intra",
            "backward",
            [
                *_tensors(rows, "q k"),
                *g,
                beta,
                rows.scores("dAqk", rows.lower),
                rows.scores("dAkk", rows.lower),
                *wide("dq dk dg"),
            ],
            [*wide("dq dk dg"), _beta(rows, "d beta, parts", blocks)],
            tf32=2 * below,
            vector=2 * diagonal + 4 * weigh,
        ),
        rows.kernel(
            "sum of d beta",
            "backward",
            [_beta(rows, "d beta, parts", blocks), _beta(rows, "d beta")],
            [_beta(rows, "d beta")],
        ),
        rows.kernel(
            "chunk_local_cumsum, reverse",
            "backward",
            wide("dg"),
            rows.decay("d decay"),
            vector=float(rows.tokens * key_width),
        ),
        *(
            [rows.kernel("cast of dq and dk", "backward", wide("dq dk"), _tensors(rows, "dq dk"))]
            if e != FLOAT32
            else []
        ),
    ]
