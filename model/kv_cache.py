"""The keys and values that decoding carries for softmax attention.

Keys keep their positions, because distances cannot be counted off: with a window and anchors, what
is carried has a gap, in every row at another place.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.attention_mask import AttentionMask
from model.sequence import SequenceInfo


class KVState(NamedTuple):
    """Keys (rotated) and values of the tokens that later queries may see, in order."""

    k: Tensor  # [B, S, Hkv, D]
    v: Tensor  # [B, S, Hkv, D]
    segments: Tensor  # int64 [B, S], document numbers
    positions: Tensor  # int64 [B, S], tokens since the start of the document


def extend(state: KVState | None, k: Tensor, v: Tensor, info: SequenceInfo) -> KVState:
    """`state` and, after it, the keys and values [B, T, Hkv, D] of the tokens of `info`."""
    positions = info.positions.expand(k.shape[:2])
    segments = torch.zeros_like(positions) if info.segments is None else info.segments.long()
    if state is None:
        return KVState(k, v, segments, positions)
    return KVState(
        torch.cat((state.k.to(k.dtype), k), dim=1),
        torch.cat((state.v.to(v.dtype), v), dim=1),
        torch.cat((state.segments, segments), dim=1),
        torch.cat((state.positions, positions), dim=1),
    )


def trim(state: KVState, mask: AttentionMask, recent: int | None = None) -> KVState:
    """Leaves out what the tokens after `state` cannot see; the size is the same in all rows.

    Without a window everything stays; with one, the last `recent` tokens and, of the document that
    the row ends in, the anchors.

    recent: window - 1 (None), the tokens that the next query sees beside itself; or window, for
        callers that want what the last query saw.
    """
    if mask.window is None:
        return state
    recent = mask.window - 1 if recent is None else recent
    total = state.k.shape[1]
    if total <= recent + mask.far_keys:
        return state
    left = total - recent  # tokens that have left the window
    if not mask.far_keys:
        return KVState(*(x[:, left:] for x in state))
    query = state.positions[:, -1:] + mask.window - recent
    positions = state.positions[:, :left]
    wanted = mask.visible(query - positions, mask.reach(positions))
    wanted = wanted & (state.segments[:, :left] == state.segments[:, -1:])
    # The anchors of each row first. Other tokens fill up rows that have fewer: no query sees them.
    order = wanted.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    rest = torch.arange(left, total, device=order.device).expand(len(order), -1)
    kept = torch.cat((order[:, : mask.far_keys], rest), dim=1)
    row = torch.arange(len(kept), device=kept.device)[:, None]
    return KVState(*(x[row, kept] for x in state))
