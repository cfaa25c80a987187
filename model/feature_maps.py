"""Feature maps phi: what a linear mixer does to queries and keys before their product.

A map is a module with

- `forward(x)`: [B, T, H, D] -> [B, T, H, features(D)], the same dtype;
- `features(dim)`: the width it gives.

Whether the kernel phi(q).phi(k) is non-negative, which a denominator needs, is declared with the
names in model/config.py.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Elementwise(nn.Module):
    """A feature map that treats every channel alike and keeps the width."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x_bthd: Tensor) -> Tensor:
        return self.function(x_bthd)

    def features(self, dim: int) -> int:
        return dim


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1 (Katharopoulos et al., 2020), without the cancellation of exp(x) - 1 + 1.

    In bfloat16 the formula as written is wrong by more than half at x = -6.
    """
    return torch.where(x >= 0, x + 1, torch.exp(x.clamp(max=0)))


def _identity(x: Tensor) -> Tensor:
    return x


FEATURE_MAPS: dict[str, Callable[[], nn.Module]] = {
    "identity": lambda: Elementwise(_identity),
    "elu1": lambda: Elementwise(elu1),
    "relu": lambda: Elementwise(F.relu),
    "silu": lambda: Elementwise(F.silu),
}
