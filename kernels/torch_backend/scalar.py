"""Chunked recurrence with no decay, one decay per head, or one per head and token.

Inside a chunk the weight of key j for query i is exp(g_{j+1} + ... + g_i). It is the exponential of
a multiple of g, or a product of factors <= 1, never a ratio or the exponential of a difference of
prefixes, so it is accurate for any decay. The backward is written by hand: it keeps the scores and
the states of the forward, and needs few passes over large tensors.

Axis letters: N chunks, B batch, H heads, C tokens of a chunk, K key width, V value width.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.torch_backend.layout import DocumentMasks, level_blocks
from kernels.torch_backend.products import add_product, product, product_over_values
from kernels.torch_backend.states import chunk_state_gradients, chunk_states


class Weights(NamedTuple):
    """Decay factors, all in [0, 1], broadcastable to the shape given; None where all are 1."""

    inside: Tensor  # [N, B, H, C, C], query by key, 0 above the diagonal
    from_start: Tensor | None  # [N, B, H, C], incoming state to query
    to_end: Tensor | None  # [N, B, H, C], key to outgoing state
    whole: Tensor | None  # [N, B, H], incoming to outgoing state


def scalar_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    initial: Tensor,
    masks: DocumentMasks | None,
    length: int,
    dtype: torch.dtype,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs [N, B, H, C, V] and final state [B, H, K, V].

    Args:
        q, k, v: [N, B, H, C, K or V], contiguous, zero in the padding after token `length`.
        decay: None, [H] or [N, B, H, C] (zero in the padding; then C is a power of two).
        initial: [B, H, K, V].
        masks: document masks, or None for one document.
        length: number of tokens before padding.
        dtype, normalize: operands of the large products, as in `products`.
    """
    masks = DocumentMasks(None, None, None, None) if masks is None else masks
    return _ScalarChunks.apply(q, k, v, decay, initial, length, dtype, normalize, *masks)


class _ScalarChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor | None,
        initial: Tensor,
        length: int,
        dtype: torch.dtype,
        normalize: bool,
        same: Tensor | None,
        reach_in: Tensor | None,
        reach_out: Tensor | None,
        carry: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        masks = None if same is None else DocumentMasks(same, reach_in, reach_out, carry)
        weights = _decay_weights(q, decay, length, masks)
        kept = _kept(weights, q)
        states = chunk_states(_scaled(k, weights.to_end), v, kept, initial, dtype, normalize)
        scores = product(q.flatten(0, 2), k.flatten(0, 2).mT, dtype)
        scores.view(*q.shape[:4], -1).mul_(weights.inside)
        out = product(scores, v.flatten(0, 2), dtype, normalize)
        queries = _scaled(q, weights.from_start)
        add_product(out, queries.flatten(0, 2), states[:-1].flatten(0, 1), dtype, normalize)
        ctx.save_for_backward(q, k, v, decay, scores, states, *weights)
        ctx.length, ctx.dtype, ctx.normalize = length, dtype, normalize
        return out.view_as(v), states[-1].view_as(initial).clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(d_out.device.type, enabled=False):
            return _backward(ctx, d_out.contiguous(), d_final)


def _backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, decay, scores, states, *factors = ctx.saved_tensors
    weights = Weights(*factors)
    dtype, normalize = ctx.dtype, ctx.normalize
    kept = _kept(weights, q)
    d_out_start = _scaled(d_out, weights.from_start)
    d_states = chunk_state_gradients(q, d_out_start, kept, d_final, dtype, normalize)
    d_outgoing = d_states[1:].flatten(0, 1)
    q3, k3, v3, d_out3 = (x.flatten(0, 2) for x in (q, k, v, d_out))
    d_scores = product_over_values(d_out3, v3, dtype, normalize)
    needs_decay = decay is not None and ctx.needs_input_grad[3]
    pairs = (d_scores * scores).view(*q.shape[:4], -1) if needs_decay else None
    d_scores.view(*q.shape[:4], -1).mul_(weights.inside)

    d_v = product(scores.mT, d_out3, dtype, normalize)
    add_product(d_v, _scaled(k, weights.to_end).flatten(0, 2), d_outgoing, dtype, normalize)
    incoming = states[:-1].flatten(0, 1)
    d_q = product_over_values(d_out_start.flatten(0, 2), incoming, dtype, normalize)
    d_k = product_over_values(
        _scaled(v, weights.to_end).flatten(0, 2), d_outgoing, dtype, normalize
    )
    d_decay = None
    if needs_decay:
        d_decay = _decay_gradient(
            pairs=pairs,
            from_start=(q3 * d_q).sum(-1).view(q.shape[:4]),
            to_end=(k3 * d_k).sum(-1).view(q.shape[:4]),
            whole=_whole_gradient(states, d_states, kept).view(q.shape[:3]),
            length=ctx.length if decay.dim() == 1 else None,
        )
    add_product(d_q, d_scores, k3, dtype)
    add_product(d_k, d_scores.mT, q3, dtype)
    d_initial = d_states[0].view_as(d_final).clone()
    return (
        d_q.view_as(q), d_k.view_as(k), d_v.view_as(v), d_decay, d_initial,
        *(None,) * 7,
    )  # fmt: skip


def _decay_weights(
    q: Tensor, decay: Tensor | None, length: int, masks: DocumentMasks | None
) -> Weights:
    num_chunks, _, _, chunk, _ = q.shape
    position = torch.arange(chunk, device=q.device)
    lag = position[:, None] - position[None, :]
    future = lag < 0
    if decay is None:
        weights = Weights((~future).to(q.dtype), None, None, None)
    elif decay.dim() == 1:
        ends = _chunk_ends(num_chunks, chunk, length, q)
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
    pairs: Tensor, from_start: Tensor, to_end: Tensor, whole: Tensor, length: int | None
) -> Tensor:
    """Gradient of the log-decays from the gradients of the four kinds of exponents.

    Every token s collects the exponents that contain g_s: pairs j < s <= i, queries i >= s, keys
    j < s, and the whole chunk. Only sums, never a difference of sums that would drown small
    gradients in rounding. `length` is given for per-head decays, whose exponents are multiples.
    """
    num_chunks, _, _, chunk = from_start.shape
    position = torch.arange(chunk, device=pairs.device)
    lag = position[:, None] - position[None, :]
    if length is not None:
        ends = _chunk_ends(num_chunks, chunk, length, pairs)
        remaining = (ends[:, None] - 1 - position).clamp(min=0)[:, None, None, :]
        inside = (pairs.sum((0, 1)) * lag).sum((1, 2))
        start = (from_start.sum((0, 1)) * (position + 1)).sum(1)
        end = (to_end * remaining).sum((0, 1, 3))
        return inside + start + end + (whole * ends[:, None, None]).sum((0, 1))
    causal = (lag >= 0).to(pairs.dtype)
    later = (lag > 0).to(pairs.dtype)
    inside = _sum_over_spanning_pairs(pairs.flatten(0, 2)).view_as(from_start)
    return inside + from_start @ causal + to_end @ later.mT + whole[..., None]


def _sum_over_spanning_pairs(pairs: Tensor) -> Tensor:
    """[M, C, C], query by key -> [M, C]: for every token s the sum over pairs j < s <= i.

    By halving: a pair of one level spans the tokens of the right half up to its query and those
    of the left half after its key. Per token that is its query's pairs, the pairs of queries
    after it and of keys before it; the latter two reach all tokens of smaller blocks alike.
    """
    count, chunk, _ = pairs.shape
    of_queries, of_keys = pairs.new_zeros(2, count, chunk)
    through = pairs.new_zeros(count, 1)
    half = chunk // 2
    while half:
        right = of_queries.view(count, -1, 2, half)[:, :, 1]
        left = of_keys.view(count, -1, 2, half)[:, :, 0]
        through = torch.stack([through + right.sum(2), through + left.sum(2)], dim=2).flatten(1)
        block = level_blocks(pairs, half)
        right.add_(block.sum(3))
        left.add_(block.sum(2))
        half //= 2
    return through + of_queries


def _chunk_ends(num_chunks: int, chunk: int, length: int, like: Tensor) -> Tensor:
    """[N] number of tokens of each chunk that are not padding."""
    starts = torch.arange(num_chunks, device=like.device) * chunk
    return (length - starts).clamp(max=chunk)


def _whole_gradient(states: Tensor, d_states: Tensor, kept: Tensor) -> Tensor:
    """[N, B * H] gradient of the log of `kept`."""
    product = (states[:-1] * d_states[1:]).sum((2, 3))
    return product * kept[:, :, 0, 0]


def _kept(weights: Weights, q: Tensor) -> Tensor | None:
    """The chunk-to-chunk factor as [N, B * H, 1, 1]."""
    if weights.whole is None:
        return None
    return weights.whole.expand(q.shape[:3]).flatten(1, 2)[..., None, None]


def _scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor[..., None]
