"""The carried state and the facts every backend needs about it."""

from typing import NamedTuple

import torch
from torch import Tensor

LEAST_DENOMINATOR = 1e-30
"""Below it, up to its sign, a sum of weights counts as none. Gradients divide by denominators, and
the largest float32 number is 3e38."""


class LinearState(NamedTuple):
    """What a call hands to the next one: the recurrence after its last token.

    S: [B, H, K, V], decayed sum of key-value outer products.
    z: [B, H, K], decayed sum of keys, or None when the call does not normalise.
    segment: [B], document number of the last token seen, or None without segments.

    S and z are float32 (float64 for float64 inputs).
    """

    S: Tensor
    z: Tensor | None
    segment: Tensor | None


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of states, accumulated decays and denominators for inputs of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def empty_state(q: Tensor, v: Tensor, normalize: bool) -> LinearState:
    """The state before the first token: zeros, which belong to any document."""
    batch, _, heads, key_width = q.shape
    options = {"dtype": work_dtype(v.dtype), "device": q.device}
    S = torch.zeros(batch, heads, key_width, v.shape[3], **options)
    z = torch.zeros(batch, heads, key_width, **options) if normalize else None
    return LinearState(S, z, None)


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator [..., V] / denominator [...], and 0 with zero gradients where the latter is none.

    A feature map may map every feature of a query or of all keys so far to 0 (relu), or to numbers
    so small that products are (exp). Then the sum has no weights at all and 0 is the only unbiased
    answer. No epsilon is added: one small enough to be harmless in float32 vanishes next to
    ordinary denominators.
    """
    empty = (denominator.abs() < LEAST_DENOMINATOR).unsqueeze(-1)
    safe = denominator.unsqueeze(-1).masked_fill(empty, 1.0)
    return (numerator / safe).masked_fill(empty, 0.0)
