"""Hedgehog: learned exponential features (Zhang et al., 2024, The Hedgehog and the Porcupine).

    phi(x) = (exp(W x + b), exp(-W x - b))

with W [d, d] and b [d] for every head, of queries and keys each; they start as the identity and 0.
"""

import torch
from torch import Tensor, nn

from model.feature_maps.exponential import Exponential
from model.linear_config import LinearSettings
from model.pattern import Depth


class Hedgehog(Exponential):
    def __init__(self, settings: LinearSettings, heads: int, dim: int, depth: Depth) -> None:
        super().__init__(settings, heads)
        self.features = 2 * dim
        self.flops_per_token = 2 * heads * 2 * dim * dim
        self.weight_q, self.weight_k = (nn.Parameter(torch.empty(heads, dim, dim)) for _ in "qk")
        self.bias_q, self.bias_k = (nn.Parameter(torch.empty(heads, dim)) for _ in "qk")

    def logits(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _logits(q, self.weight_q, self.bias_q), _logits(k, self.weight_k, self.bias_k)

    @torch.no_grad()
    def init_weights(self) -> None:
        for weight in (self.weight_q, self.weight_k):
            weight.zero_()
            weight.diagonal(dim1=1, dim2=2).fill_(1)
        for bias in (self.bias_q, self.bias_k):
            bias.zero_()


def _logits(x_bthd: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = torch.einsum("bthd,hed->bthe", x_bthd, weight.to(x_bthd.dtype)) + bias.to(x_bthd.dtype)
    return torch.cat((y, -y), dim=-1)
