"""Rows and keys with one decay per key channel and token.

A chunk is halved again and again. At half-length s, every block of 2 s tokens has an anchor at
the end of its left half: rows of the right half carry the decay from the anchor to them, keys of
the left half the decay from them to the anchor. Both factors are at most 1 and their product
is the wanted weight, so that each level is a batch of s x s matrix products; the levels
s = 1, 2, .. C / 2 and the diagonal (weight 1) cover the causal triangle exactly once.

The factors are built bottom-up as products of exp(g) <= 1, restarted at each anchor: when two
blocks merge, the right block's rows take up the decay of the whole left block, the left block's
keys that of the whole right block. The backward walks the same levels top-down; there the
gradient of a log-decay is a sum over just the products that this decay multiplies. Nothing is ever
divided, and no sums are subtracted from each other, so no range of decays loses accuracy, not even
the tiny gradient of a gate that is shut.

Axis letters: N chunks, B batch, H heads, C tokens of a chunk (a power of two), R rows per token,
K key width; M = N * B * H.
"""

import torch
from torch import Tensor

from kernels.torch_backend.layout import Decayed, DecayedGradients, DocumentMasks, level_blocks
from kernels.torch_backend.products import product


def decayed(
    rows: Tensor,
    k: Tensor,
    decay: Tensor,
    length: int,
    masks: DocumentMasks | None,
    dtype: torch.dtype,
) -> tuple[Decayed, tuple[Tensor | None, ...]]:
    """See `kernels.torch_backend.decayed`; decay is [N, B, H, C, K]."""
    chunk, width = k.shape[3:]
    k3, factors = k.flatten(0, 2), decay.flatten(0, 2).exp()
    rows4 = rows.view(-1, chunk, rows.shape[3] // chunk, width)
    count, _, per_token, _ = rows4.shape
    scores = k.new_zeros(count, chunk * per_token, chunk)
    diagonals = scores.view(count, chunk, per_token, chunk).diagonal(dim1=1, dim2=3)
    diagonals.copy_((rows4 * k3[:, :, None]).sum(-1).mT)
    decayed_rows, keys, whole = rows4 * factors[:, :, None], k3.clone(), factors
    rights, lefts, wholes = [], [], []
    half = 1
    while half < chunk:
        right = _halves(decayed_rows, half * per_token)[:, 1]
        left = _halves(keys, half)[:, 0]
        totals = _pairs_of_blocks(whole)
        rights.append(right.clone())
        lefts.append(left.clone())
        wholes.append(totals)
        blocks = level_blocks(scores, half)
        blocks.copy_(_outer(rights[-1], lefts[-1], dtype).view(blocks.shape))
        right.mul_(totals[:, 0, None])
        left.mul_(totals[:, 1, None])
        whole = (totals[:, 0] * totals[:, 1]).view(count, -1, width)
        half *= 2
    decayed_rows, keys = decayed_rows.view_as(rows), keys.view_as(k)
    whole = whole.view(*k.shape[:3], -1)
    if masks is not None:
        scores.view(*k.shape[:4], per_token, chunk).mul_(masks.same[..., None, :])
        decayed_rows.view(*k.shape[:4], per_token, width).mul_(masks.reach_in[..., None, None])
        keys.mul_(masks.reach_out[..., None])
        whole = whole * masks.carry[..., None]
    parts = Decayed(scores, decayed_rows, keys, whole.flatten(1, 2)[..., None])
    of_masks = (None,) * 3 if masks is None else masks[:3]
    return parts, (rows, k, factors, *of_masks, *rights, *lefts, *wholes)


def decayed_gradients(
    parts: Decayed, saved: tuple[Tensor | None, ...], d: DecayedGradients, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `kernels.torch_backend.decayed`."""
    rows, k, factors, same, reach_in, reach_out, *levels = saved
    chunk, width = k.shape[3:]
    per_token = rows.shape[3] // chunk
    depth = len(levels) // 3
    rights, lefts, wholes = levels[:depth], levels[depth : 2 * depth], levels[2 * depth :]
    # Gradients of the decayed rows and keys, from the states down to the smallest blocks. The
    # diagonal comes last: it carries no decay.
    d_rows, d_keys = d.rows, d.keys
    if same is not None:
        d.scores.view(*k.shape[:4], per_token, chunk).mul_(same[..., None, :])
        d_rows.view(*k.shape[:4], per_token, width).mul_(reach_in[..., None, None])
        d_keys.view_as(k).mul_(reach_out[..., None])
    # Gradient of the sum of log-decays of each block: the products that pass through all of it.
    through = d.log_kept
    for level in reversed(range(depth)):
        half = 1 << level
        right, left, totals = rights[level], lefts[level], wholes[level]
        d_right = _halves(d_rows, half * per_token)[:, 1].mul_(totals[:, 0, None])
        d_left = _halves(d_keys, half)[:, 0].mul_(totals[:, 1, None])
        if through is not None:
            # What reaches the right half's rows from before the block passes the left half,
            # what leaves the left half's keys for after the block passes the right half.
            passing = torch.stack([_inner(right, d_right), _inner(left, d_left)], dim=1)
            through = passing.add_(through[:, None]).flatten(0, 1)
        block = level_blocks(d.scores, half).flatten(0, 1)
        _add_block(d_right, block, left, dtype)
        _add_block(d_left, block.mT, right, dtype)
    rows4, k3 = rows.view(-1, chunk, per_token, width), k.flatten(0, 2)
    d_rows4 = d_rows.view_as(rows4).mul_(factors[:, :, None])
    d_decay = None if through is None else through.view_as(k3)
    diagonals = d.scores.view(-1, chunk, per_token, chunk).diagonal(dim1=1, dim2=3)[..., None]
    for row in range(per_token):
        row_values, d_row, diagonal = rows4[:, :, row], d_rows4[:, :, row], diagonals[:, row]
        if d_decay is not None:
            d_decay.addcmul_(row_values, d_row)
        d_row.addcmul_(diagonal, k3)
        d_keys.addcmul_(diagonal, row_values)
    d_decay = None if d_decay is None else d_decay.view_as(k)
    return d_rows.view_as(rows), d_keys.view_as(k), d_decay


def _halves(x: Tensor, half: int) -> Tensor:
    """[M, .., K] -> [n, 2, half, K]: blocks of two halves of so many rows."""
    return x.view(-1, 2, half, x.shape[-1])


def _pairs_of_blocks(whole: Tensor) -> Tensor:
    """[M, C / half, K] -> [M * C / (2 half), 2, K]."""
    return whole.view(-1, 2, whole.shape[-1])


# Batched products of matrices this small cost more to start than to compute.
_TINY = 2


def _outer(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, a, K], [n, b, K] -> [n, a, b], summed over K."""
    if y.shape[1] > _TINY:
        return product(x, y.mT, dtype)
    return (x[:, :, None] * y[:, None]).sum(-1)


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """[n, s, K], [n, s, K] -> [n, K], summed over tokens."""
    return (x * y).squeeze(1) if x.shape[1] == 1 else (x * y).sum(1)


def _add_block(target: Tensor, block: Tensor, x: Tensor, dtype: torch.dtype) -> None:
    """target [n, a, K] += block [n, a, b] @ x [n, b, K]."""
    if x.shape[1] > _TINY:
        target.add_(product(block, x, dtype))
        return
    for token in range(x.shape[1]):
        target.addcmul_(block[:, :, token, None], x[:, token, None])
