"""The triangular systems of the delta rule, one per tile: the UT transform.

With errors e against the state before the tile, e_i = v_i - (what k_i reads there), the delta rule
needs the errors r that remain once the tile's earlier tokens have written:

    r_i = e_i - sum_{j < i} L_ij beta_j r_j          L_ij = k_i . k_j times the decay between them

The solution is r = e - X (beta e) with X = (I + L diag(beta))^-1 L, strictly lower triangular like
L. Gradients need the transposed system, whose solution is c - X^T (beta c): one matrix serves both.
For unit keys and beta from 0 to 2 no element of X exceeds 1. (Yang et al., 2024, DeltaNet.)
"""

import triton
import triton.language as tl

from kernels.triton.device import TILE, VARYING, load_tokens, place, store_tile
from kernels.triton.scores import differ, scores

SMALL = tl.constexpr(16)  # the smallest side of a product
SMALL_LEVELS = tl.constexpr(4)  # halvings of it


@triton.jit(do_not_specialize=VARYING)
def corrections(
    k, beta, decay, segments, corrections_,
    k_sb, k_st, k_sh, beta_sb, beta_st, beta_sh, decay_sb, decay_st, decay_sh,
    segments_sb, segments_st, length, heads,
    FAMILY: tl.constexpr, SEGMENTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    K: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """X of every tile, [B * H * tiles, TILE, TILE]."""
    tiles = tl.cdiv(length, TILE)
    _, tile, row, batch, head = place(1, tiles, heads)
    k += batch * k_sb + head * k_sh
    beta += batch * beta_sb + head * beta_sh
    decay += batch * decay_sb + head * decay_sh
    segments += batch * segments_sb

    start = tile * TILE
    index = tl.arange(0, TILE)
    lower = scores(
        k, k_st, k, k_st, decay, decay_st, segments, segments_st, start, length, 1.0,
        FAMILY, SEGMENTS, OPERAND, PRECISION, K, BK,
    )  # fmt: skip
    lower = tl.where(index[:, None] > index[None, :], lower, 0.0)
    solved = solve(lower, load_tokens(beta, beta_st, start, length), EXACT)
    store_tile(corrections_, row * tiles + tile, solved)


@triton.jit
def solve(lower, beta, EXACT: tl.constexpr):
    """(I + lower diag(beta))^-1 lower for a strictly lower triangular matrix [TILE, TILE].

    Two neighbouring blocks on the diagonal, solved to A and B, with C below A and left of B, make
    one of twice their side:

        [A 0]        Y = C - C beta A
        [Z B]        Z = Y - B beta Y

    Unlike powers of the matrix, which reach 1e19 for repeated keys, nothing grows here on the way.
    """
    halves_, below_halves = quarters(tl.reshape(lower, (1, TILE, TILE)))
    fourths, below_fourths = quarters(halves_)
    solved = solve_small(fourths, tl.reshape(beta, (TILE // SMALL, SMALL)), EXACT)
    solved = double(solved, below_fourths, beta, EXACT)
    solved = double(solved, below_halves, beta, EXACT)
    return tl.reshape(solved, (TILE, TILE))


@triton.jit
def solve_small(lower, beta, EXACT: tl.constexpr):
    """The same for every block of [blocks, SMALL, SMALL], beta [blocks, SMALL]."""
    index = tl.arange(0, SMALL)
    later = index[:, None] > index[None, :]
    columns = beta[:, None, :]
    solved = tl.where(((differ(index, 0) == 1) & later)[None], lower, 0.0)  # blocks of two rows
    for level in tl.range(1, SMALL_LEVELS, loop_unroll_factor=1, num_stages=1):
        below = tl.where(((differ(index, level) == 1) & later)[None], lower, 0.0)
        part = below - batched_dot(below * columns, solved, EXACT)
        solved += part - batched_dot(solved * columns, part, EXACT)
    return solved


@triton.jit
def double(solved, below, beta, EXACT: tl.constexpr):
    """Blocks of twice the side: [2 N, S, S] with what lies below, [N, S, S], to [N, 2 S, 2 S]."""
    N: tl.constexpr = below.shape[0]
    S: tl.constexpr = below.shape[1]
    first, second = tl.split(tl.permute(tl.reshape(solved, (N, 2, S, S)), (0, 2, 3, 1)))
    beta_first, beta_second = tl.split(tl.permute(tl.reshape(beta, (N, 2, S)), (0, 2, 1)))
    part = below - batched_dot(below * beta_first[:, None, :], first, EXACT)
    part -= batched_dot(second * beta_second[:, None, :], part, EXACT)
    left, right = tl.join(first, part), tl.join(tl.zeros_like(second), second)  # [N, S, S, row]
    joined = tl.permute(tl.join(left, right), (0, 3, 1, 4, 2))
    return tl.reshape(joined, (N, 2 * S, 2 * S))


@triton.jit
def batched_dot(x, y, EXACT: tl.constexpr):
    """x @ y of every block of [N, S, S], float32."""
    S: tl.constexpr = x.shape[1]
    if x.shape[0] == 1:  # Triton 3.7 gives all of a batch of one to every warp
        product = tl.dot(tl.reshape(x, (S, S)), tl.reshape(y, (S, S)), input_precision=EXACT)
        return product[None]
    else:
        return tl.dot(x, y, input_precision=EXACT)


@triton.jit
def quarters(blocks):
    """Of [N, 2 S, 2 S]: the quarters on the diagonal, [2 N, S, S], and below it, [N, S, S]."""
    N: tl.constexpr = blocks.shape[0]
    S: tl.constexpr = blocks.shape[1] // 2
    apart = tl.permute(tl.reshape(blocks, (N, 2, S, 2, S)), (0, 2, 4, 1, 3))
    left, right = tl.split(apart)
    first, below = tl.split(left)
    _, second = tl.split(right)
    diagonal = tl.permute(tl.join(first, second), (0, 3, 1, 2))
    return tl.reshape(diagonal, (2 * N, S, S)), below
