"""Causal softmax attention over packed documents, from one description of what is visible.

Three ways through `attention`, with equal results:

- CPU, eager: document by document with the fused kernel. Documents cost the sum of their squares,
  a window costs length times (window + anchors) in time and memory.
- CUDA, where `prepare_block_mask` was called for the batch (training and evaluation):
  flex_attention, see model/flex.py.
- Otherwise (compiled for a CPU, prompts and short rows on a GPU, other devices): one call with a
  mask of length times length, and as many per head with ALiBi.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.attention_mask import AttentionMask
from model.flex import flex
from model.kv_cache import KVState
from model.sdpa import sdpa
from model.sequence import SequenceInfo

# Queries that share one explicit mask: few enough to bound its memory, enough for the kernel.
_QUERY_BLOCK = 256


class Attended(NamedTuple):
    """Outputs, and how much of a query's weight its further key has, if there is one."""

    y: Tensor  # [B, T, H, D]
    share: Tensor | None  # [B, T, H]


def attention(
    q_bthd: Tensor,
    k_bthd: Tensor,
    v_bthd: Tensor,
    info: SequenceInfo,
    mask: AttentionMask,
    extra: Tensor | None = None,
) -> Attended:
    """softmax(q k^T / sqrt(D) [- slope distance]) v over what `mask` shows of the same document.

    Args:
        q_bthd: [B, T, H, D]; k_bthd, v_bthd: [B, T, Hkv, D] with Hkv dividing H.
        extra: float32 (float64 with float64 inputs), finite, [H] or [B, T, H]: the logit of one
            more key of each query, whose value is 0; see model/sdpa.py.
    """
    q, k, v = (x.transpose(1, 2) for x in (q_bthd, k_bthd, v_bthd))
    extra = _by_head(extra, q)
    blocks = info.block_masks.get(mask)
    if blocks is not None:
        y = flex(q, k, v, mask, blocks, extra)
    elif q.device.type == "cpu" and not torch.compiler.is_compiling():
        y = _by_document(q, k, v, info, mask, extra)
    else:
        y = _masked(q, k, v, info, info, mask, extra)
    return _attended(y, extra)


def cached_attention(
    q_bthd: Tensor,
    keys: KVState,
    info: SequenceInfo,
    mask: AttentionMask,
    extra: Tensor | None = None,
) -> Attended:
    """As `attention`, for new queries with `info` (T tokens) that end the S >= T `keys`."""
    q, k, v = (x.transpose(1, 2) for x in (q_bthd, keys.k, keys.v))
    extra = _by_head(extra, q)
    key_info = SequenceInfo(keys.segments, keys.positions)
    outputs = []
    for start in range(0, q.shape[2], _QUERY_BLOCK):
        at = slice(start, start + _QUERY_BLOCK)
        query_info = SequenceInfo(info.segments[:, at], info.positions[:, at])
        some = None if extra is None else extra[:, :, at]
        outputs.append(_masked(q[:, :, at], k, v, query_info, key_info, mask, some))
    return _attended(torch.cat(outputs, dim=2), extra)


def _by_head(extra: Tensor | None, q: Tensor) -> Tensor | None:
    """[H] or [B, T, H] -> [B, H, T], for queries [B, H, T, D]."""
    if extra is None:
        return None
    return extra.expand(q.shape[0], q.shape[2], q.shape[1]).transpose(1, 2)


def _attended(y: Tensor, extra: Tensor | None) -> Attended:
    y = y.transpose(1, 2)
    return Attended(y, None) if extra is None else Attended(y[..., :-1], y[..., -1])


def _by_document(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    info: SequenceInfo,
    mask: AttentionMask,
    extra: Tensor | None,
) -> Tensor:
    if info.segments is None:
        return _one_document(q, k, v, mask, extra)
    rows = []
    for row, ranges in enumerate(info.document_ranges()):
        at = slice(row, row + 1)
        parts = [
            _one_document(
                *(x[at, :, a:b] for x in (q, k, v)),
                mask,
                None if extra is None else extra[at, :, a:b],
            )
            for a, b in ranges
        ]
        rows.append(torch.cat(parts, dim=2) if len(parts) > 1 else parts[0])
    return torch.cat(rows)


def _one_document(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, extra: Tensor | None
) -> Tensor:
    """Attention over whole documents [B, H, T, D], in blocks of queries where a mask is needed."""
    heads, length = q.shape[1:3]
    windowed = mask.window is not None and mask.window < length
    if not windowed and not mask.alibi:
        return sdpa(q, k, v, extra=extra)
    block = min(length, max(_QUERY_BLOCK, mask.window) if windowed else _QUERY_BLOCK)
    reach = mask.window - 1 if windowed else length  # most keys that a block sees before itself
    index = torch.arange(reach + block, device=q.device)

    def explicit(query: Tensor, key: Tensor) -> Tensor:
        distance = query[:, None] - key
        return mask.for_sdpa(mask.visible(distance, key), distance, heads, q.dtype)

    # Distances near a block are the same for all blocks: one mask, of which each block takes a
    # part. Its keys count as no anchors, which stand before the others.
    shifted = index + mask.anchors
    near = explicit(shifted[reach:], shifted)
    outputs = []
    for start in range(0, length, block):
        end = min(start + block, length)
        anchors = min(mask.anchors, end) if windowed else 0
        first = max(start - reach, anchors)
        seen = near[..., : end - start, reach - (start - first) : reach + end - start]
        keys, values = k[:, :, first:end], v[:, :, first:end]
        if anchors:
            query = torch.arange(start, end, device=q.device)
            far = explicit(query, torch.arange(anchors, device=q.device))
            seen = torch.cat((far, seen), dim=-1)
            keys = torch.cat((k[:, :, :anchors], keys), dim=2)
            values = torch.cat((v[:, :, :anchors], values), dim=2)
        some = None if extra is None else extra[:, :, start:end]
        outputs.append(sdpa(q[:, :, start:end], keys, values, seen, some))
    return torch.cat(outputs, dim=2)


def _masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: SequenceInfo,
    keys: SequenceInfo,
    mask: AttentionMask,
    extra: Tensor | None,
) -> Tensor:
    """One call with an explicit mask; of [B, H, T, D] queries and [B, Hkv, S, D] keys."""
    distance = queries.positions[:, :, None] - keys.positions[:, None]
    seen = mask.visible(distance, keys.positions[:, None])
    if queries.segments is not None:
        seen = seen & (queries.segments[:, :, None] == keys.segments[:, None])
    return sdpa(q, k, v, mask.for_sdpa(seen, distance, q.shape[1], q.dtype), extra)
