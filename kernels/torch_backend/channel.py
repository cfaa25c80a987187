"""Chunked recurrence with one decay per key channel and token.

A chunk is halved again and again. At half-length s, every block of 2 s tokens has an anchor at
the end of its left half: queries of the right half carry the decay from the anchor to them, keys
of the left half the decay from them to the anchor. Both factors are at most 1 and their product
is the wanted weight, so that each level is a batch of s x s matrix products; the levels
s = 1, 2, .. C / 2 and the diagonal (weight 1) cover the causal triangle exactly once.

The factors are built bottom-up as products of exp(g) <= 1, restarted at each anchor: when two
blocks merge, the right block's queries take up the decay of the whole left block, the left
block's keys that of the whole right block. The backward walks the same levels top-down; there the
gradient of a log-decay is a sum over just the products that this decay multiplies. Nothing is ever
divided, and no sums are subtracted from each other, so no range of decays loses accuracy, not even
the tiny gradient of a gate that is shut.

Axis letters: N chunks, B batch, H heads, C tokens of a chunk (a power of two), K key width,
V value width; M = N * B * H.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.torch_backend.layout import DocumentMasks, level_blocks
from kernels.torch_backend.products import add_product, product, product_over_values
from kernels.torch_backend.states import chunk_state_gradients, chunk_states


def channel_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    initial: Tensor,
    masks: DocumentMasks | None,
    dtype: torch.dtype,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs [N, B, H, C, V] and final state [B, H, K, V].

    Args:
        q, k, v: [N, B, H, C, K or V], contiguous, zero in the padding; C is a power of two.
        decay: [N, B, H, C, K], zero in the padding.
        initial: [B, H, K, V].
        masks: document masks, or None for one document.
        dtype, normalize: operands of the large products, as in `products`.
    """
    masks = DocumentMasks(None, None, None, None) if masks is None else masks
    return _ChannelChunks.apply(q, k, v, decay, initial, dtype, normalize, *masks)


class _ChannelChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor,
        initial: Tensor,
        dtype: torch.dtype,
        normalize: bool,
        same: Tensor | None,
        reach_in: Tensor | None,
        reach_out: Tensor | None,
        carry: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        chunk = q.shape[3]
        q3, k3, v3, factors = (x.flatten(0, 2) for x in (q, k, v, decay.exp()))
        scores = q3.new_zeros(q3.shape[0], chunk, chunk)
        scores.diagonal(dim1=1, dim2=2).copy_((q3 * k3).sum(-1))
        queries, keys, whole = q3 * factors, k3.clone(), factors
        rights, lefts, wholes = [], [], []
        half = 1
        while half < chunk:
            right = _halves(queries, half)[:, 1]
            left = _halves(keys, half)[:, 0]
            totals = _pairs_of_blocks(whole)
            rights.append(right.clone())
            lefts.append(left.clone())
            wholes.append(totals)
            block = _outer(rights[-1], lefts[-1], dtype)
            level_blocks(scores, half).copy_(block.view(q3.shape[0], -1, half, half))
            right.mul_(totals[:, 0, None])
            left.mul_(totals[:, 1, None])
            whole = (totals[:, 0] * totals[:, 1]).view(q3.shape[0], -1, q3.shape[2])
            half *= 2
        queries, keys = queries.view_as(q), keys.view_as(k)
        whole = whole.view(*q.shape[:3], -1)
        if same is not None:
            scores.view(*q.shape[:4], chunk).mul_(same)
            queries.mul_(reach_in[..., None])
            keys.mul_(reach_out[..., None])
            whole = whole * carry[..., None]
        kept = whole.flatten(1, 2)[..., None]
        states = chunk_states(keys, v, kept, initial, dtype, normalize)
        out = product(scores, v3, dtype, normalize)
        add_product(out, queries.flatten(0, 2), states[:-1].flatten(0, 1), dtype, normalize)
        ctx.dtype, ctx.normalize = dtype, normalize
        ctx.save_for_backward(
            q, k, v, factors, scores, states, queries, keys, kept,
            same, reach_in, reach_out, *rights, *lefts, *wholes,
        )  # fmt: skip
        return out.view_as(v), states[-1].view_as(initial).clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(d_out.device.type, enabled=False):
            return _backward(ctx, d_out.contiguous(), d_final)


def _backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
    (
        q, k, v, factors, scores, states, queries, keys, kept,
        same, reach_in, reach_out, *levels,
    ) = ctx.saved_tensors  # fmt: skip
    dtype, normalize = ctx.dtype, ctx.normalize
    chunk = q.shape[3]
    depth = len(levels) // 3
    rights, lefts, wholes = levels[:depth], levels[depth : 2 * depth], levels[2 * depth :]
    q3, k3, v3, d_out3 = (x.flatten(0, 2) for x in (q, k, v, d_out))
    d_states = chunk_state_gradients(queries, d_out, kept, d_final, dtype, normalize)
    d_outgoing = d_states[1:].flatten(0, 1)

    d_scores = product_over_values(d_out3, v3, dtype, normalize)
    if same is not None:
        d_scores.view(*q.shape[:4], chunk).mul_(same)
    d_v = product(scores.mT, d_out3, dtype, normalize)
    add_product(d_v, keys.flatten(0, 2), d_outgoing, dtype, normalize)

    # Gradients of the decayed queries and keys, from the states down to the smallest blocks. The
    # diagonal comes last: it carries no decay.
    d_q = product_over_values(d_out3, states[:-1].flatten(0, 1), dtype, normalize)
    d_k = product_over_values(v3, d_outgoing, dtype, normalize)
    if same is not None:
        d_q.view_as(q).mul_(reach_in[..., None])
        d_k.view_as(k).mul_(reach_out[..., None])
    # Gradient of the sum of log-decays of each block: the products that pass through all of it.
    through = None
    if ctx.needs_input_grad[3]:
        through = ((states[:-1] * d_states[1:]).sum(3) * kept[..., 0]).flatten(0, 1)
    for level in reversed(range(depth)):
        half = 1 << level
        right, left, totals = rights[level], lefts[level], wholes[level]
        d_right = _halves(d_q, half)[:, 1].mul_(totals[:, 0, None])
        d_left = _halves(d_k, half)[:, 0].mul_(totals[:, 1, None])
        if through is not None:
            # What reaches the right half's queries from before the block passes the left half,
            # what leaves the left half's keys for after the block passes the right half.
            passing = torch.stack([_inner(right, d_right), _inner(left, d_left)], dim=1)
            through = passing.add_(through[:, None]).flatten(0, 1)
        block = level_blocks(d_scores, half).flatten(0, 1)
        _add_block(d_right, block, left, dtype)
        _add_block(d_left, block.mT, right, dtype)
    d_q.mul_(factors)
    d_decay = None if through is None else through.view_as(q3).addcmul_(q3, d_q).view_as(q)
    diagonal = d_scores.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    d_q.addcmul_(diagonal, k3)
    d_k.addcmul_(diagonal, q3)
    d_initial = d_states[0].view_as(d_final).clone()
    return d_q.view_as(q), d_k.view_as(k), d_v.view_as(v), d_decay, d_initial, *(None,) * 6


def _halves(x: Tensor, half: int) -> Tensor:
    """[M, C, K] -> [M * C / (2 half), 2, half, K]: blocks of two halves."""
    return x.view(-1, 2, half, x.shape[-1])


def _pairs_of_blocks(whole: Tensor) -> Tensor:
    """[M, C / half, K] -> [M * C / (2 half), 2, K]."""
    return whole.view(-1, 2, whole.shape[-1])


# Batched products of matrices this small cost more to start than to compute.
_TINY = 2


def _outer(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, s, K], [n, s, K] -> [n, s, s], summed over K."""
    if x.shape[1] > _TINY:
        return product(x, y.mT, dtype)
    return (x[:, :, None] * y[:, None]).sum(-1)


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """[n, s, K], [n, s, K] -> [n, K], summed over tokens."""
    return (x * y).squeeze(1) if x.shape[1] == 1 else (x * y).sum(1)


def _add_block(target: Tensor, block: Tensor, x: Tensor, dtype: torch.dtype) -> None:
    """target [n, s, K] += block [n, s, s] @ x [n, s, K]."""
    if x.shape[1] > _TINY:
        target.add_(product(block, x, dtype))
        return
    for token in range(x.shape[1]):
        target.addcmul_(block[:, :, token, None], x[:, token, None])
