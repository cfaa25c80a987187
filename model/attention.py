"""Causal softmax attention over packed documents, full or with a sliding window.

One function, two ways through it: document by document with the fused kernel where positions of
documents can be read on the host (CPU, eager), one masked call otherwise. Documents cost the sum
of their squares, a window costs length times window.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from model.sequence import SequenceInfo


def attention(
    q_bthd: Tensor, k_bshd: Tensor, v_bshd: Tensor, info: SequenceInfo, window: int | None
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over the earlier tokens of the same document.

    Args:
        q_bthd: [B, T, H, D]; k_bshd, v_bshd: [B, T, Hkv, D] with Hkv dividing H.
        window: a query sees itself and the `window - 1` tokens before it; None: all.

    Returns:
        [B, T, H, D].
    """
    q, k, v = (x.transpose(1, 2) for x in (q_bthd, k_bshd, v_bshd))
    length = q.shape[2]
    if info.segments is None:
        return _one_document(q, k, v, window).transpose(1, 2)
    if q.device.type == "cpu" and not torch.compiler.is_compiling():
        rows = []
        for row, ranges in enumerate(info.document_ranges()):
            at = slice(row, row + 1)
            parts = [
                _one_document(q[at, :, a:b], k[at, :, a:b], v[at, :, a:b], window)
                for a, b in ranges
            ]
            rows.append(torch.cat(parts, dim=2) if len(parts) > 1 else parts[0])
        return torch.cat(rows).transpose(1, 2)
    index = torch.arange(length, device=q.device)
    mask = visible(info.segments, index, info.segments, index, window)
    return _sdpa(q, k, v, attn_mask=mask).transpose(1, 2)


def cached_attention(
    q_bthd: Tensor,
    k_bshd: Tensor,
    v_bshd: Tensor,
    segments_bt: Tensor,
    segments_bs: Tensor,
    window: int | None,
) -> Tensor:
    """As `attention`, for T new queries at the end of S >= T keys (the cache and the new ones).

    segments_bt, segments_bs: document numbers of the queries and of the keys.
    """
    new, total = q_bthd.shape[1], k_bshd.shape[1]
    index = torch.arange(total, device=q_bthd.device)
    mask = visible(segments_bt, index[total - new :], segments_bs, index, window)
    q, k, v = (x.transpose(1, 2) for x in (q_bthd, k_bshd, v_bshd))
    return _sdpa(q, k, v, attn_mask=mask).transpose(1, 2)


def visible(
    query_segments: Tensor,
    query_index: Tensor,
    key_segments: Tensor,
    key_index: Tensor,
    window: int | None,
) -> Tensor:
    """Which keys each query sees: bool [B, 1, T, S], causal, same document, inside the window."""
    distance = query_index[:, None] - key_index[None, :]
    near = distance >= 0
    if window is not None:
        near = near & (distance < window)
    return (near & (query_segments[:, :, None] == key_segments[:, None, :]))[:, None]


def _one_document(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    length = q.shape[2]
    if window is None or length <= window:
        return _sdpa(q, k, v, is_causal=True)
    # Blocks of `window` queries see their own block and the one before it.
    outputs = []
    for start in range(0, length, window):
        end, first = min(start + window, length), max(start - window + 1, 0)
        query_index = torch.arange(start, end, device=q.device)[:, None]
        key_index = torch.arange(first, end, device=q.device)[None]
        near = (key_index <= query_index) & (query_index - key_index < window)
        outputs.append(
            _sdpa(q[:, :, start:end], k[:, :, first:end], v[:, :, first:end], attn_mask=near)
        )
    return torch.cat(outputs, dim=2)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **options)
