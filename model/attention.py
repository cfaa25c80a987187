"""Causal softmax attention over packed documents, from one description of what is visible.

Ways through `attention`, with equal results:

- CUDA, where `prepare_block_mask` was called for the batch (training and evaluation):
  flex_attention, see model/flex.py.
- A window, everywhere else: blocks of queries with the keys that they see, see model/windowed.py.
  It costs length times (window + anchors + a block of queries), in time and memory.
- CPU, eager: document by document with the fused kernel. Documents cost the sum of their squares,
  those longer than a window as above.
- Otherwise (compiled for a CPU, prompts and short rows on a GPU, other devices): one call with a
  mask of length times length, and as many per head with ALiBi.

`continued_attention` follows a cache in blocks of queries, with the same costs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.attention_mask import AttentionMask
from model.flex import flex
from model.kv_cache import KVState, extend, trim
from model.sdpa import sdpa
from model.sequence import SequenceInfo
from model.windowed import windowed

# Queries that share a slice of keys, or a mask: few enough to bound its memory, enough for the
# kernel.
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
    blocks = info.block_masks.get(mask.description)
    if blocks is not None:
        y = flex(q, k, v, mask, blocks, extra)
    elif q.device.type == "cpu" and not torch.compiler.is_compiling():
        y = _by_document(q, k, v, info, mask, extra)
    elif mask.window is not None:
        y = windowed(q, k, v, info, mask, extra, _QUERY_BLOCK)
    else:
        y = _masked(q, k, v, info, info, mask, extra)
    return _attended(y, extra)


def continued_attention(
    q_bthd: Tensor,
    k_bthd: Tensor,
    v_bthd: Tensor,
    info: SequenceInfo,
    mask: AttentionMask,
    state: KVState,
    extra: Tensor | None = None,
) -> tuple[Attended, KVState]:
    """As `attention`, for tokens that follow those of `state`; and the state after them."""
    if mask.window is None:
        state = extend(state, k_bthd, v_bthd, info)
    outputs = []
    for at, some in info.pieces(_QUERY_BLOCK):
        if mask.window is not None:  # what a block has seen is forgotten before the next one
            state = extend(state, k_bthd[:, at], v_bthd[:, at], some)
        further = extra if extra is None or extra.dim() == 1 else extra[:, at]
        keys = SequenceInfo(state.segments, state.positions)
        attended = explicit_attention(q_bthd[:, at], state.k, state.v, some, keys, mask, further)
        outputs.append(attended)
        state = trim(state, mask)
    shares = None if extra is None else torch.cat([part.share for part in outputs], dim=1)
    return Attended(torch.cat([part.y for part in outputs], dim=1), shares), state


def explicit_attention(
    q_bthd: Tensor,
    k_bshd: Tensor,
    v_bshd: Tensor,
    queries: SequenceInfo,
    keys: SequenceInfo,
    mask: AttentionMask,
    extra: Tensor | None = None,
) -> Attended:
    """As `attention`, of T queries and S keys with descriptions of their own, all T S scores."""
    q, k, v = (x.transpose(1, 2) for x in (q_bthd, k_bshd, v_bshd))
    extra = _by_head(extra, q)
    return _attended(_masked(q, k, v, queries, keys, mask, extra), extra)


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
    """Attention over whole documents [B, H, T, D]."""
    length = q.shape[2]
    block = -(-length // -(-length // _QUERY_BLOCK))  # the least that takes as few blocks
    index = torch.arange(length, device=q.device)
    if mask.window is not None and mask.window < length:
        return windowed(q, k, v, SequenceInfo(None, index[None]), mask, extra, block)
    if not mask.alibi:
        return sdpa(q, k, v, extra=extra)
    outputs = []
    for start in range(0, length, block):  # the scores of all queries at once are too many
        end = min(start + block, length)
        distance = index[start:end, None] - index[:end]
        seen = mask.for_sdpa(distance >= 0, distance, q.shape[1], q.dtype)
        some = None if extra is None else extra[:, :, start:end]
        outputs.append(sdpa(q[:, :, start:end], k[:, :, :end], v[:, :, :end], seen, some))
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
    reach = mask.reach(keys.positions)
    seen = mask.visible(distance, reach[:, None] if isinstance(reach, Tensor) else reach)
    if queries.segments is not None:
        seen = seen & (queries.segments[:, :, None] == keys.segments[:, None])
    return sdpa(q, k, v, mask.for_sdpa(seen, distance, q.shape[1], q.dtype), extra)
