"""cosFormer: relu weighted by the distance of the tokens (Qin et al., 2022).

    phi(q_i).phi(k_j) = relu(q_i).relu(k_j) cos(pi/2 (i - j) / M)

by the addition theorem from cosine and sine features of the positions in the document. M is a fixed
maximum, `max_length`, never the length of what was given: a text would otherwise change its first
tokens' weights by growing. Up to M tokens all features are non-negative; longer rows are refused.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.feature_maps.base import Mapped, wide
from model.linear_config import LinearSettings
from model.pattern import Depth
from model.sequence import SequenceInfo

DEFAULT_LENGTH = 8192


class CosFormer(nn.Module):
    flops_per_token = 0
    state_bytes = 0

    def __init__(self, settings: LinearSettings, heads: int, dim: int, depth: Depth) -> None:
        super().__init__()
        self.features = 2 * dim
        self.max_length = settings.max_length or DEFAULT_LENGTH

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        info: SequenceInfo,
        state: None = None,
        exists: Tensor | None = None,
    ) -> Mapped:
        angle = info.positions.double()[:, :, None, None] * (math.pi / 2 / self.max_length)
        cos, sin = angle.cos(), angle.sin()
        return Mapped(_weighted(q, cos, sin), _weighted(k, cos, sin))


def _weighted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = F.relu(wide(x))
    return torch.cat((y * cos.to(y.dtype), y * sin.to(y.dtype)), dim=-1).to(x.dtype)
