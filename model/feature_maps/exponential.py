"""Maps phi(x) = exp(logits(x)), exact and finite for logits of any size.

Queries: any factor per token cancels in the ratio that a denominator forms, so that each is divided
by its largest feature. Keys: the factor must be one that all keys of a sum share and that no later
token knows. It is exp(-c_t), with c_t the largest logit of the document's keys up to t, per head.
Where c grows, what the state holds shrinks by exp(c_{t-1} - c_t): a decay per head and token, which
the recurrence has already. So the result is that of the plain formula, step by step or in chunks;
decoding carries c.

With queries and keys of length 1 (`qk_norm`) a factor of its own cancels for every key as well, and
no running maximum is needed.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.feature_maps.base import Mapped, wide
from model.linear_config import LinearSettings
from model.pattern import Depth
from model.sequence import SequenceInfo


class MaximumState(NamedTuple):
    """The largest logit of the keys so far."""

    maximum: Tensor  # float32 [B, H], -inf where there was none
    segment: Tensor | None  # [B], the document it belongs to


class Exponential(nn.Module):
    """The base of these maps: a subclass gives `features` and `logits`."""

    features: int
    flops_per_token = 0

    def __init__(self, settings: LinearSettings, heads: int) -> None:
        super().__init__()
        self.each_key_alone = settings.unit_keys
        self.state_bytes = 0 if self.each_key_alone else 4 * heads + 8

    def logits(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, H, D] -> [B, T, H, features], both float32."""
        raise NotImplementedError

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        info: SequenceInfo,
        state: MaximumState | None = None,
        exists: Tensor | None = None,
    ) -> Mapped:
        with torch.autocast(q.device.type, enabled=False):
            of_q, of_k = self.logits(wide(q), wide(k))
            largest_q = _largest(of_q)
            mapped_q = (of_q - largest_q[..., None]).exp().to(q.dtype)
            largest = _largest(of_k)
            if self.each_key_alone:
                return Mapped(mapped_q, (of_k - largest[..., None]).exp().to(k.dtype))
            if exists is not None:
                largest = largest.masked_fill(~exists, -torch.inf)
            maximum, before = running_maximum(largest, info.segments, state)
            last = None if info.segments is None else info.segments[:, -1].to(torch.int64)
            kept = MaximumState(maximum[:, -1], last)
            # Before the first key of a document nothing shrinks, and any factor will do.
            maximum = maximum.masked_fill(maximum == -torch.inf, 0)
            before = torch.where(before == -torch.inf, maximum, before)
            of_k = of_k - maximum[..., None]
            if exists is not None:
                of_k = of_k.masked_fill(~exists[..., None], -torch.inf)
            mapped_k = of_k.exp().to(k.dtype)
        return Mapped(mapped_q, mapped_k, before - maximum, kept, largest_q + maximum)


class Exp(Exponential):
    """exp(x), channel by channel."""

    def __init__(self, settings: LinearSettings, heads: int, dim: int, depth: Depth) -> None:
        super().__init__(settings, heads)
        self.features = dim

    def logits(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


def running_maximum(
    values: Tensor, segments: Tensor | None, state: MaximumState | None
) -> tuple[Tensor, Tensor]:
    """The largest of `values` [B, T, H] from the start of the document to each token.

    Returns:
        it, and the same up to the token before (at the first token of a document: up to itself, as
        nothing comes before it).
    """
    if segments is None:
        maximum = values.cummax(dim=1).values
        return maximum, torch.cat((maximum[:, :1], maximum[:, :-1]), dim=1)
    carried = 0
    if state is not None:
        carried = 1
        values = torch.cat((state.maximum[:, None].to(values.dtype), values), dim=1)
        segments = torch.cat((state.segment[:, None].to(segments.dtype), segments), dim=1)
    maximum, distance = values, 1
    while distance < values.shape[1]:
        # Numbers never decrease: if they are equal so far apart, all between is one document.
        same = segments[:, distance:] == segments[:, :-distance]
        earlier = maximum[:, :-distance].masked_fill(~same[..., None], -torch.inf)
        earlier = F.pad(earlier, (0, 0, distance, 0), value=-torch.inf)
        maximum, distance = torch.maximum(maximum, earlier), 2 * distance
    starts = F.pad(segments[:, 1:] != segments[:, :-1], (1, 0), value=True)
    before = torch.cat((maximum[:, :1], maximum[:, :-1]), dim=1)
    before = torch.where(starts[..., None], maximum, before)
    return maximum[:, carried:], before[:, carried:]


def _largest(logits: Tensor) -> Tensor:
    return logits.detach().amax(dim=-1)
