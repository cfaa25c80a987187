"""Which earlier tokens a query of softmax attention sees, and what their distance costs.

One description: the document-by-document path, masked attention, the cache and flex_attention all
ask it element by element, so that they cannot disagree.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.random_anchors import RandomAnchors

FOREVER = 2**62
"""The reach of a key that stays visible to the end of its document."""


class AttentionMask(NamedTuple):
    """Causal attention inside a document, and options on top of it.

    window: a query sees itself and the `window - 1` tokens before it; None: all of them.
    anchors: the first tokens of the document that stay visible outside of the window (attention
        sinks; Xiao et al., 2023, StreamingLLM), one set per document for all its queries.
    alibi: scores fall linearly with distance, faster in some heads than in others (Press et al.,
        2022).
    drawn: random tokens behind the window that stay visible for a while; see random_anchors.py.
    """

    window: int | None = None
    anchors: int = 0
    alibi: bool = False
    drawn: RandomAnchors | None = None

    @property
    def description(self) -> tuple:
        """Plain values that tell masks of one block apart."""
        drawn = None if self.drawn is None else (self.drawn.places, self.drawn.seed)
        return self.window, self.anchors, self.alibi, drawn

    @property
    def far_keys(self) -> int:
        """How many keys behind the window a query sees at most."""
        return self.anchors + (0 if self.drawn is None else self.drawn.places)

    def reach(self, key_position: Tensor) -> Tensor | int:
        """How many queries see a key, counted from itself: those at distances below its reach.

        key_position: tokens from the start of the document to the key.
        """
        if self.window is None:
            return FOREVER
        reach: Tensor | int = self.window
        if self.drawn is not None:
            reach = self.window + self.drawn.stay(key_position - self.anchors)
        if self.anchors:
            reach = torch.where(key_position < self.anchors, FOREVER, reach)
        return reach

    def behind(self, position: Tensor) -> Tensor:
        """Positions [.., far_keys] of the keys behind the window that queries at `position` see.

        Negative ones are of no key. First tokens are listed even where the window has them.
        """
        first = torch.arange(self.anchors, device=position.device)
        first = first.expand(*position.shape, -1)
        if self.drawn is None:
            return first
        drawn = self.drawn.held(position - self.window - self.anchors)
        drawn = torch.where(drawn < 0, -1, drawn + self.anchors)
        return torch.cat((first, drawn), dim=-1)

    def leaving(self, position: Tensor) -> Tensor:
        """Positions of the keys that queries at `position` are the first not to see.

        There is at most one: the token that leaves the window, or the anchor whose place it takes.
        Negative: there is none.
        """
        candidate = position - self.window - self.anchors
        gone = candidate if self.drawn is None else self.drawn.displaced(candidate)
        return torch.where((candidate < 0) | (gone < 0), -1, gone + self.anchors)

    def visible(self, distance: Tensor, reach: Tensor | int) -> Tensor:
        """Whether a query sees a key of its own document, bool, element by element.

        distance: tokens from the key to the query, negative for later keys.
        reach: of the key.
        """
        seen = distance >= 0
        return seen if self.window is None else seen & (distance < reach)

    def for_sdpa(self, visible: Tensor, distance: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        """The `attn_mask` of scaled_dot_product_attention, of the dtype of the queries.

        visible: bool [..., T, S]; distance: [..., T, S].

        Returns:
            `visible` with a head axis [..., 1, T, S], or with ALiBi scores to add [..., H, T, S].
        """
        visible, distance = visible.unsqueeze(-3), distance.unsqueeze(-3)
        if not self.alibi:
            return visible
        head = torch.arange(heads, device=distance.device)[:, None, None]
        # In float64 until the end: a mask of another dtype than the queries is read as garbage.
        bias = alibi_slope(head, heads, torch.float64) * -distance
        return torch.where(visible, bias, -torch.inf).to(dtype)

    def mean_visible(self, length: int) -> float:
        """Keys per query, on average over a document of `length` tokens."""
        if self.window is None or self.window >= length:
            return (length + 1) / 2
        behind = length - self.window  # queries that have tokens behind their window
        total = _rising(self.window, length) + _rising(self.anchors, behind)
        if self.drawn is not None:
            total += _rising(self.drawn.places, behind - self.anchors)
        return total / length

    def most_kept(self, length: int) -> int:
        """Keys that later queries may see after a document of `length` tokens."""
        if self.window is None:
            return length
        return min(length, self.far_keys + self.window - 1)


def alibi_slope(head: Tensor, heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a step of distance costs in the scores of head number `head` (from 0) of `heads`.

    The sequence 2^(-8/n), 2^(-16/n), .. , 2^-8 for n = heads, a power of two; otherwise that of the
    next lower power n, then every other one of the sequence for 2n. Computed from the number, not
    looked up: flex_attention then captures no tensor.
    """
    power = 2 ** (heads.bit_length() - 1)
    step = 8 / power
    exponent = torch.where(head < power, head + 1, head - power + 0.5) * step
    return torch.exp2(-exponent.to(dtype))


def _rising(most: int, steps: int) -> float:
    """The sum of 1, 2, .. , most, most, .. over so many steps."""
    rising = max(min(most, steps), 0)
    return rising * (rising + 1) / 2 + max(steps - rising, 0) * most
