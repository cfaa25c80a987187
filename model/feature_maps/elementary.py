"""Feature maps without parameters or options: functions of [..., D] that keep the width."""

import torch
import torch.nn.functional as F
from torch import Tensor

from model.feature_maps.base import wide


def identity(x: Tensor) -> Tensor:
    return x


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1 (Katharopoulos et al., 2020), without the cancellation of exp(x) - 1 + 1.

    In bfloat16 the formula as written is wrong by more than half at x = -6.
    """
    return torch.where(x >= 0, x + 1, torch.exp(x.clamp(max=0)))


def relu(x: Tensor) -> Tensor:
    return F.relu(x)


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2 (So et al., 2021, Primer)."""
    return F.relu(x).square()


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the channels of each vector (Shen et al., 2021, Efficient attention)."""
    return wide(x).softmax(dim=-1).to(x.dtype)
