"""The second-order Taylor expansion of the softmax kernel (Arora et al., 2024, Based).

    phi(q).phi(k) = 1 + s + s^2 / 2 = ((s + 1)^2 + 1) / 2 >= 1/2      s = q.k / sqrt(d)

s^2 is a sum over pairs of channels, in which (i, j) and (j, i) are equal: each is stored once, off
the diagonal with the weight sqrt(2). That is 1 + d + d (d + 1) / 2 features, 153 for d = 16.

In bfloat16 the kernel is positive for vectors with x.x / sqrt(d) up to 15: beyond, the rounding of
the features, 2^-8 of the product of their lengths, may exceed 1/2.
"""

import torch
from torch import Tensor

from model.feature_maps.base import VectorMap, wide
from model.linear_config import LinearSettings
from model.pattern import Depth


class Taylor(VectorMap):
    def __init__(self, settings: LinearSettings, heads: int, dim: int, depth: Depth) -> None:
        super().__init__(taylor, 1 + dim + dim * (dim + 1) // 2)


def taylor(x: Tensor) -> Tensor:
    """[..., d] -> [..., 1 + d + d (d + 1) / 2]: 1, the channels, squares, products of pairs."""
    dim = x.shape[-1]
    y = wide(x) * dim**-0.25
    first, second = torch.triu_indices(dim, dim, 1, device=x.device)
    one = torch.ones_like(y[..., :1])
    squares = y.square() * 2**-0.5
    return torch.cat((one, y, squares, y[..., first] * y[..., second]), dim=-1).to(x.dtype)
