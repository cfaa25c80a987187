"""The small layers that blocks and mixers share: norms, SwiGLU, short causal convolution."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import rms_norm, short_conv
from kernels.convolution import MOST_TAPS


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in float32.

    Source: Zhang and Sennrich, 2019.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def init_weights(self) -> None:
        nn.init.ones_(self.weight)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis, computed in float32.

    Shorter by half an eps of x's type (bfloat16: 0.4 %), so that rounding to it makes nothing
    longer than 1: the delta rule's state grows without bound where beta |k|^2 exceeds 2.
    """
    y = x.float()
    shrink = 1 - torch.finfo(x.dtype).eps / 2
    return (y * (shrink * torch.rsqrt(y.square().sum(-1, keepdim=True) + eps))).to(x.dtype)


class SwiGLU(nn.Module):
    """The feed-forward layer down(silu(gate x) * up x) (Shazeer, 2020)."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, hidden, bias=False)
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class ConvState(NamedTuple):
    """The last `width - 1` inputs of a convolution, zeros on the left, and their documents."""

    inputs: Tensor  # [B, width - 1, D], values before the convolution
    segments: Tensor  # int64 [B, width - 1], -1 where there was no token


class ShortConv(nn.Module):
    """Causal depthwise convolution over time; taps never leave the document.

    y_t = silu(sum_j weight_j x_{t-j}), j = 0 .. width - 1, or without the silu.

    delayed: so many leading channels start as the token before, the others as the token itself.
    """

    def __init__(self, dim: int, width: int, silu: bool = True, delayed: int = 0) -> None:
        super().__init__()
        self.width, self.silu, self.delayed = width, silu, delayed
        self.weight = nn.Parameter(torch.empty(width, dim))  # row j multiplies x_{t-j}

    def forward(
        self,
        x_btd: Tensor,
        segments: Tensor | None,
        state: ConvState | None = None,
        keep_state: bool = False,
        kernels: str = "auto",
    ) -> tuple[Tensor, ConvState | None]:
        """[B, T, D] -> [B, T, D] and, on request, the state after the last token.

        `state` needs `segments`: the numbers say whether the carried inputs belong to the same
        document.
        """
        carried = (None, None)
        if state is not None:
            carried = (state.inputs, state.segments)
        y = short_conv(x_btd, self.weight, segments, *carried, silu=self.silu, backend=kernels)
        return y, self._keep(x_btd, segments, state) if keep_state else None

    def _keep(self, x_btd: Tensor, segments: Tensor | None, state: ConvState | None) -> ConvState:
        batch, length, dim = x_btd.shape
        past = self.width - 1
        if segments is None:
            segments = x_btd.new_zeros((batch, length), dtype=torch.int64)
        inputs = x_btd.new_zeros(batch, past, dim)
        numbers = x_btd.new_full((batch, past), -1, dtype=torch.int64)
        if state is not None:
            inputs, numbers = state.inputs.to(x_btd.dtype), state.segments
        start = max(length - past, 0)  # no copy of a long prompt
        inputs = torch.cat((inputs, x_btd[:, start:]), dim=1)
        numbers = torch.cat((numbers, segments[:, start:].to(torch.int64)), dim=1)
        return ConvState(inputs[:, length - start :], numbers[:, length - start :])

    def layer_shapes(self) -> set[tuple[str, int, int, bool]]:
        """{("short_conv", channels, taps, silu)}: what selects the kernels; empty without any."""
        if self.width > MOST_TAPS:
            return set()
        return {("short_conv", self.weight.shape[1], self.width, self.silu)}

    def init_weights(self) -> None:
        # One token plus a little of the others: training starts close to no convolution.
        nn.init.normal_(self.weight, std=0.1)
        with torch.no_grad():
            self.weight[0, self.delayed :] += 1
            if self.delayed:
                self.weight[1, : self.delayed] += 1
