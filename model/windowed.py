"""Attention of a window at linear cost: each block of queries sees a slice of the keys.

A block of C queries at the tokens a .. a + C - 1 meets the C + window - 1 tokens up to its end, and
the keys farther back that stay visible: those of the document that token a belongs to, since every
later document of the block starts inside of the slice. All blocks are one call, with shapes that
follow from the length alone, whatever the documents: it compiles, and never reads a value.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention_mask import AttentionMask
from model.sdpa import sdpa
from model.sequence import SequenceInfo


def windowed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    info: SequenceInfo,
    mask: AttentionMask,
    extra: Tensor | None,
    block: int,
) -> Tensor:
    """Attention under a `mask` with a window, over whole rows.

    Args:
        q: [B, H, T, D]; k, v: [B, Hkv, T, D].
        info: of rows that start with the start of a document.
        extra: [B, H, T] or None, as in `sdpa`.
        block: queries of a block.

    Returns:
        [B, H, T, D], or with `extra` [B, H, T, D + 1].
    """
    length = q.shape[2]
    blocks = -(-length // block)
    if torch.compiler.is_compiling():
        # At least two blocks and some padding: torch 2.13 mistakes an axis of length 1 for another
        # one where it flattens, and tells full rows from others. Both compile anew, by length.
        blocks = torch.sym_max(length // block + 1, 2)
    past, padding = mask.window - 1, blocks * block - length

    def slices(x: Tensor, fill: int = 0) -> Tensor:
        """[.., T] -> [.., blocks, past + block]: for each block the tokens that end with it."""
        return F.pad(x, (past, padding), value=fill).unfold(-1, past + block, block)

    # A document is known by the token that it starts at. Before the row there is none: -1.
    index = torch.arange(length, device=q.device)
    starts = slices(index - info.positions, -1)
    of_query = starts[..., past:, None]
    ordinal = torch.arange(past + block, device=q.device)
    distance = ordinal[past:, None] - ordinal
    reach = mask.reach(info.positions)
    near_reach = slices(reach)[..., None, :] if isinstance(reach, Tensor) else reach
    seen = mask.visible(distance, near_reach) & (of_query == starts[..., None, :])
    keys, values = (slices(x.transpose(2, 3)).permute(0, 3, 1, 4, 2) for x in (k, v))
    if mask.far_keys:
        first = torch.arange(blocks, device=q.device)[:, None] * block
        start = starts[..., past, None]  # of the document of a block's first token
        position = mask.behind(slices(info.positions)[..., past])
        exists = (start >= 0) & (position >= 0) & (start + position < first - past)
        far = torch.where(exists, start + position, 0)
        from_query = (first - far)[..., None, :] + ordinal[:block, None]
        far_seen = mask.visible(from_query, mask.reach(position)[..., None, :])
        far_seen = far_seen & exists[..., None, :] & (of_query == start[..., None])
        seen = torch.cat((far_seen, seen), dim=-1)
        distance = torch.cat((from_query, distance.expand(*seen.shape[:-1], -1)), dim=-1)
        keys = torch.cat((_at(k, far), keys), dim=3)
        values = torch.cat((_at(v, far), values), dim=3)
    added = mask.for_sdpa(seen, distance, q.shape[1], q.dtype)
    added = added.expand(len(q), *added.shape[1:]).flatten(0, 1)

    def by_block(x: Tensor) -> Tensor:
        """[B, H, T, D] -> [B * blocks, H, block, D]"""
        x = F.pad(x, (0, 0, 0, padding))
        return x.unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)

    if extra is not None:
        extra = by_block(extra[..., None])[..., 0]
    y = sdpa(by_block(q), keys.flatten(0, 1), values.flatten(0, 1), added, extra)
    y = y.unflatten(0, (len(q), blocks)).transpose(1, 2).flatten(2, 3)
    return y[:, :, :length]


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Tokens [B, blocks, H, M, D] of [B, H, T, D] at `index` [B or 1, blocks, M]."""
    flat = index.expand(len(x), -1, -1).flatten(1)[:, None, :, None]
    found = x.gather(2, flat.expand(-1, x.shape[1], -1, x.shape[3]))
    return found.unflatten(2, index.shape[1:]).transpose(1, 2)
