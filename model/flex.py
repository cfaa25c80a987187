"""Softmax attention by flex_attention, which skips the blocks of scores that nobody sees.

Used on CUDA. Block masks are made for a whole batch before the first layer and shared by all layers
of one description, outside of what is compiled.

What is tested where: on a CPU, the tests compare eager flex_attention's outputs and gradients with
float64, the lists of blocks (which the eager form does not read) with those of torch's own
`create_block_mask`, and compile a network's blocks without generating code. The kernel that torch
generates for CUDA needs a GPU and does not run in the tests.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from model.attention_mask import FOREVER, AttentionMask, alibi_slope
from model.sequence import SequenceInfo

BLOCK = 128
"""Tokens of a block of the mask, flex_attention's own default."""

_DEVICES = ("cuda",)  # that have the fused kernel, with gradients
_SMALLEST_WIDTH = 16  # of a head, for the kernel's matrix products; wider ones need no padding


def prepare_block_mask(info: SequenceInfo, mask: AttentionMask) -> None:
    """Makes the block mask of a batch on CUDA, unless another layer has; other devices use none.

    Rows shorter than a block have nothing to skip and get none.
    """
    used = info.positions.device.type in _DEVICES and info.positions.shape[1] >= BLOCK
    made, key = info.block_masks, mask.description
    if mask.drawn is not None:  # every block draws its own
        made = info.masks_of_blocks.setdefault(mask.drawn.block, {})
    if used and key not in made:
        made[key] = block_mask(info, mask)


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    blocks: BlockMask,
    extra: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v under `mask`.

    Args:
        q: [B, H, T, D]; k, v: [B, Hkv, T, D] with Hkv dividing H.
        blocks: of `block_mask`, for these rows.
        extra: [B, H, T], the logit of one more key of each query, whose value is 0.

    Returns:
        [B, H, T, D], or with `extra` [B, H, T, D + 1]: last the share of that key.
    """
    width = q.shape[-1]
    if width < _SMALLEST_WIDTH:
        q, k, v = (F.pad(x, (0, _SMALLEST_WIDTH - width)) for x in (q, k, v))
    attend = _compiled() if q.device.type == "cuda" else flex_attention
    y, aux = attend(
        q,
        k,
        v,
        score_mod=_score_mod(q.shape[1]) if mask.alibi else None,
        block_mask=blocks,
        scale=width**-0.5,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=extra is not None),
    )
    y = y[..., :width]
    if extra is None:
        return y
    share = torch.sigmoid(extra - aux.lse)[..., None]  # exp(extra) / (exp(extra) + exp(lse))
    return torch.cat((y * (1 - share), share), dim=-1).to(q.dtype)


def block_mask(info: SequenceInfo, mask: AttentionMask) -> BlockMask:
    """The mask of a batch as lists of blocks: to compute, to mask by element, to skip.

    Found from the tokens at the borders of blocks: [B, T / BLOCK, T / BLOCK] numbers, where
    `create_block_mask` would form all [B, T, T] unless it is compiled.
    """
    some, every = _visible_blocks(info, mask)
    partial = some & ~every
    length = info.positions.shape[1]
    return BlockMask.from_kv_blocks(
        *_listed(partial),
        *_listed(every),
        BLOCK_SIZE=BLOCK,
        mask_mod=_mask_mod(info, mask),
        seq_lengths=(length, length),
    )


def _mask_mod(info: SequenceInfo, mask: AttentionMask) -> Callable[..., Tensor]:
    segments, reach = info.segments, mask.reach(info.positions)
    # Not the layer's own object: compiled with it, the code would fit no other layer.
    visible = AttentionMask(mask.window).visible

    def of_key(b, key):
        if not isinstance(reach, Tensor):
            return reach
        return reach[0 if segments is None else b, key]

    def in_document(b, h, query, key):
        seen = visible(query - key, of_key(b, key))
        return seen if segments is None else seen & (segments[b, query] == segments[b, key])

    return in_document


def _score_mod(heads: int) -> Callable[..., Tensor]:
    return lambda score, b, h, query, key: score - alibi_slope(h, heads) * (query - key)


def _visible_blocks(info: SequenceInfo, mask: AttentionMask) -> tuple[Tensor, Tensor]:
    """Pairs of a query block and a key block of which some, or all, pairs of tokens are visible.

    bool [B or 1, query blocks, key blocks] both. A last block that is not full counts as partial,
    as in `create_block_mask`.
    """
    length = info.positions.shape[1]
    index = torch.arange(length, device=info.positions.device)
    first = index[::BLOCK]
    last = (first + BLOCK - 1).clamp(max=length - 1)
    segments = torch.zeros_like(info.positions) if info.segments is None else info.segments

    # Axes: row, query block, key block. Of earlier key blocks only one document can be visible:
    # the one the query block starts in, if the key block ends in it (numbers never decrease).
    query_first, query_last = first[:, None], last[:, None]
    key_last = last[None]
    earlier = key_last < query_first
    some = earlier & (segments[:, first, None] == segments[:, None, last])
    every = earlier & (segments[:, last, None] == segments[:, None, first])
    every = every & (query_last - query_first == BLOCK - 1)
    if mask.window is not None:
        # The first query that a key is too far from: the last one of a block's keys that go on
        # into later blocks, which are those of its last document, and the first one of all keys.
        end = (index + mask.reach(info.positions)).expand(segments.shape)
        going_on = segments == segments[:, last].repeat_interleave(BLOCK, dim=1)[:, :length]
        farthest = _by_block(end.masked_fill(~going_on, 0), 0).amax(dim=-1)
        nearest = _by_block(end, FOREVER).amin(dim=-1)
        some = some & (query_first < farthest[:, None])
        every = every & (query_last < nearest[:, None])
    return some | torch.eye(len(first), dtype=torch.bool, device=first.device), every


def _by_block(values: Tensor, padding: int) -> Tensor:
    """[B, T] -> [B, T / BLOCK, BLOCK], the last block filled up with `padding`."""
    return F.pad(values, (0, -values.shape[1] % BLOCK), value=padding).unflatten(1, (-1, BLOCK))


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[B, Q, K] flags as counts [B, 1, Q] and key block numbers [B, 1, Q, K], chosen ones first."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1)[:, None].to(torch.int32), order[:, None].to(torch.int32)


@cache
def _compiled() -> Callable[..., Tensor]:
    # fullgraph: an error instead of the slow form that holds all scores.
    return torch.compile(flex_attention, fullgraph=True)
