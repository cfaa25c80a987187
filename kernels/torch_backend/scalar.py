"""Rows and keys with no decay, one decay per head, or one per head and token.

Inside a chunk the weight of key j for the rows of token i is exp(g_{j+1} + ... + g_i). It is the
exponential of a multiple of g, or a product of factors <= 1, never a ratio or the exponential of a
difference of prefixes, so it is accurate for any decay.

Axis letters: N chunks, B batch, H heads, C tokens of a chunk, R rows per token, K key width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.torch_backend.layout import Decayed, DecayedGradients, DocumentMasks, level_blocks
from kernels.torch_backend.products import add_product, product


class Weights(NamedTuple):
    """Decay factors, all in [0, 1], broadcastable to the shape given; None where all are 1."""

    inside: Tensor  # [N, B, H, C, C], row by key, 0 above the diagonal
    from_start: Tensor | None  # [N, B, H, C], incoming state to row
    to_end: Tensor | None  # [N, B, H, C], key to outgoing state
    whole: Tensor | None  # [N, B, H], incoming to outgoing state


def decayed(
    rows: Tensor,
    k: Tensor,
    decay: Tensor | None,
    length: int,
    masks: DocumentMasks | None,
    dtype: torch.dtype,
) -> tuple[Decayed, tuple[Tensor | None, ...]]:
    """See `kernels.torch_backend.decayed`; decay is None, [H] or [N, B, H, C]."""
    weights = _decay_weights(k, decay, length, masks)
    scores = product(rows.flatten(0, 2), k.flatten(0, 2).mT, dtype)
    _per_token(scores.view(*rows.shape[:4], -1), k).mul_(weights.inside[..., None, :])
    parts = Decayed(
        scores,
        _scaled_rows(rows, weights.from_start, k),
        k if weights.to_end is None else k * weights.to_end[..., None],
        _kept(weights, k),
    )
    ends = None
    if decay is not None and decay.dim() == 1:
        ends = _chunk_ends(k.shape[0], k.shape[3], length, k)
    return parts, (rows, k, ends, *weights[:3])


def decayed_gradients(
    parts: Decayed, saved: tuple[Tensor | None, ...], d: DecayedGradients, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `kernels.torch_backend.decayed`."""
    rows, k, ends, inside, from_start, to_end = saved
    d_scores, d_rows = d.scores.view(*rows.shape[:4], -1), d.rows.view_as(rows)
    d_keys = d.keys.view_as(k)
    d_decay = None
    if d.log_kept is not None:
        d_decay = _decay_gradient(
            pairs=d.scores * parts.scores,
            from_start=_per_token(parts.rows * d_rows, k).sum((4, 5)),
            to_end=(parts.keys * d_keys).sum(4),
            whole=d.log_kept.sum(1).view(k.shape[:3]),
            ends=ends,
        )
    _per_token(d_scores, k).mul_(inside[..., None, :])
    if from_start is not None:
        _per_token(d_rows, k).mul_(from_start[..., None, None])
    if to_end is not None:
        d_keys.mul_(to_end[..., None])
    add_product(d.rows, d.scores, k.flatten(0, 2), dtype)
    add_product(d.keys, d.scores.mT, rows.flatten(0, 2), dtype)
    return d_rows, d_keys, d_decay


def _decay_weights(
    k: Tensor, decay: Tensor | None, length: int, masks: DocumentMasks | None
) -> Weights:
    num_chunks, _, _, chunk, _ = k.shape
    position = torch.arange(chunk, device=k.device)
    lag = position[:, None] - position[None, :]
    future = lag < 0
    if decay is None:
        weights = Weights((~future).to(k.dtype), None, None, None)
    elif decay.dim() == 1:
        ends = _chunk_ends(num_chunks, chunk, length, k)
        g = decay[:, None]
        inside = (g[..., None] * lag).masked_fill(future, -torch.inf)
        remaining = (ends[:, None] - 1 - position).clamp(min=0)  # the padding's keys are 0 anyway
        weights = Weights(
            inside.exp(),
            ((position + 1) * g).exp(),
            (remaining[:, None, None, :] * g).exp(),
            (ends[:, None, None] * decay).exp(),
        )
    else:
        weights = _token_weights(decay)
    if masks is None:
        return weights
    return Weights(
        weights.inside * masks.same,
        masks.reach_in if weights.from_start is None else weights.from_start * masks.reach_in,
        masks.reach_out if weights.to_end is None else weights.to_end * masks.reach_out,
        masks.carry if weights.whole is None else weights.whole * masks.carry,
    )


def _token_weights(decay: Tensor) -> Weights:
    """Weights of [N, B, H, C] log-decays, C a power of two, as products of exp(g) <= 1.

    Built by halving, as for per-channel decays: the weight of a key of the left half for a query
    of the right half is its decay to the middle times the query's decay from the middle.
    """
    chunk = decay.shape[3]
    factors = decay.flatten(0, 2).exp()
    inside = factors.new_zeros(*factors.shape, chunk)
    inside.diagonal(dim1=1, dim2=2).fill_(1.0)
    from_start, to_end, whole = factors.clone(), torch.ones_like(factors), factors
    half = 1
    while half < chunk:
        right = from_start.view(-1, chunk // (2 * half), 2, half)[:, :, 1]
        left = to_end.view(-1, chunk // (2 * half), 2, half)[:, :, 0]
        totals = whole.view(-1, chunk // (2 * half), 2)
        level_blocks(inside, half).copy_(right[..., None] * left[..., None, :])
        right.mul_(totals[..., 0, None])
        left.mul_(totals[..., 1, None])
        whole = totals[..., 0] * totals[..., 1]
        half *= 2
    return Weights(
        inside.view(*decay.shape, chunk),
        from_start.view_as(decay),
        to_end.view_as(decay),
        whole.view(decay.shape[:3]),
    )


def _decay_gradient(
    pairs: Tensor, from_start: Tensor, to_end: Tensor, whole: Tensor, ends: Tensor | None
) -> Tensor:
    """Gradient of the log-decays from the gradients of the four kinds of exponents.

    Every token s collects the exponents that contain g_s: pairs j < s <= i, rows i >= s, keys
    j < s, and the whole chunk. Only sums, never a difference of sums that would drown small
    gradients in rounding. `ends` is given for per-head decays, whose exponents are multiples.
    """
    _, _, heads, chunk = from_start.shape
    position = torch.arange(chunk, device=pairs.device)
    lag = position[:, None] - position[None, :]
    if ends is not None:
        remaining = (ends[:, None] - 1 - position).clamp(min=0)[:, None, None, :]
        of_heads = pairs.view(-1, heads, chunk, pairs.shape[1] // chunk, chunk).sum((0, 3))
        inside = (of_heads * lag).sum((1, 2))
        start = (from_start.sum((0, 1)) * (position + 1)).sum(1)
        end = (to_end * remaining).sum((0, 1, 3))
        return inside + start + end + (whole * ends[:, None, None]).sum((0, 1))
    causal = (lag >= 0).to(pairs.dtype)
    later = (lag > 0).to(pairs.dtype)
    inside = _sum_over_spanning_pairs(pairs).view_as(from_start)
    return inside + from_start @ causal + to_end @ later.mT + whole[..., None]


def _sum_over_spanning_pairs(pairs: Tensor) -> Tensor:
    """[M, C R, C], row by key -> [M, C]: for every token s the sum over pairs j < s <= i.

    By halving: a pair of one level spans the tokens of the right half up to its row's and those of
    the left half after its key. Per token that is its rows' pairs, the pairs of rows after it and
    of keys before it; the latter two reach all tokens of smaller blocks alike.
    """
    count, _, chunk = pairs.shape
    of_rows, of_keys = pairs.new_zeros(2, count, chunk)
    through = pairs.new_zeros(count, 1)
    half = chunk // 2
    while half:
        right = of_rows.view(count, -1, 2, half)[:, :, 1]
        left = of_keys.view(count, -1, 2, half)[:, :, 0]
        through = torch.stack([through + right.sum(2), through + left.sum(2)], dim=2).flatten(1)
        block = level_blocks(pairs, half)
        right.add_(block.unflatten(2, (half, -1)).sum((3, 4)))
        left.add_(block.sum(2))
        half //= 2
    return through + of_rows


def _chunk_ends(num_chunks: int, chunk: int, length: int, like: Tensor) -> Tensor:
    """[N] number of tokens of each chunk that are not padding."""
    starts = torch.arange(num_chunks, device=like.device) * chunk
    return (length - starts).clamp(max=chunk)


def _kept(weights: Weights, k: Tensor) -> Tensor | None:
    """The chunk-to-chunk factor as [N, B * H, 1, 1]."""
    if weights.whole is None:
        return None
    return weights.whole.expand(k.shape[:3]).flatten(1, 2)[..., None, None]


def _per_token(rows: Tensor, k: Tensor) -> Tensor:
    """View of [N, B, H, C R, ...] as [N, B, H, C, R, ...]."""
    return rows.unflatten(3, (k.shape[3], -1))


def _scaled_rows(rows: Tensor, factor: Tensor | None, k: Tensor) -> Tensor:
    if factor is None:
        return rows
    return (_per_token(rows, k) * factor[..., None, None]).view_as(rows)
