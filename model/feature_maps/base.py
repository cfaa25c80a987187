"""What feature maps return, and the maps that treat every query and key alone."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.sequence import SequenceInfo


class Mapped(NamedTuple):
    """Mapped queries and keys, in the dtype of the vectors they come from.

    log_decay: what the state must be multiplied by besides its own decay, as a logarithm, float32
        [B, T, H]; None: nothing.
    state: a named tuple of what decoding carries to the next tokens; None: nothing.
    log_factor: the logarithm of what phi(q).phi(k) of each query and the keys up to it was divided
        by, float32 [B, T, H]; None: 1, or not one number for all keys.
    """

    q: Tensor  # [B, T, H, features]
    k: Tensor  # [B, T, H, features]
    log_decay: Tensor | None = None
    state: tuple | None = None
    log_factor: Tensor | None = None


class VectorMap(nn.Module):
    """A map of single vectors.

    function: [..., dim] -> [..., features], for any dtype.
    """

    flops_per_token = 0
    state_bytes = 0

    def __init__(self, function: Callable[[Tensor], Tensor], features: int) -> None:
        super().__init__()
        self.function, self.features = function, features

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        info: SequenceInfo,
        state: None = None,
        exists: Tensor | None = None,
    ) -> Mapped:
        return Mapped(self.function(q), self.function(k))


def wide(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it is that: 16 bits are too few for exponents and sums."""
    return x if x.dtype == torch.float64 else x.float()
