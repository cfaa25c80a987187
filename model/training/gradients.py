"""The size of gradients, and clipping; sharded gradients count as the whole ones they are parts of.

Clipping is done here and not by Lightning, which clips before the gradients of all micro-batches
are there under manual optimization.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of all gradients together, 0-d, the same on all ranks."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    # Of sharded gradients every rank holds a part of the sum.
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def clip(parameters: Iterable[nn.Parameter], highest: float | None) -> Tensor:
    """Scales all gradients to the norm `highest`, if theirs is higher; returns the norm before."""
    parameters = list(parameters)
    norm = gradient_norm(parameters)
    if highest is not None:
        with_gradients = [p for p in parameters if p.grad is not None]
        torch.nn.utils.clip_grads_with_norm_(with_gradients, highest, norm)
    return norm
