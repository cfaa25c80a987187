"""Gated short convolution: a block that looks a few tokens back, with a state of as many.

    y_t = W_o (silu(W_g x_t) * sum_j w_j * (W_v x_{t-j})),   j = 0 .. conv_width - 1

Products of a token and its near past are what attention needs to find bigrams; with it, attention
can be left to fewer blocks. Sources: Arora et al., 2023 (Zoology: BaseConv) and 2024 (Based, most
blocks of which are these).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from model.conv_config import ConvSettings
from model.layers import ConvState, ShortConv
from model.pattern import Depth
from model.sequence import SequenceInfo
from model.widths import whole_width


class ConvMixer(nn.Module):
    def __init__(self, settings: ConvSettings, d_model: int, norm_eps: float, depth: Depth) -> None:
        super().__init__()
        width = whole_width(d_model, settings.expand, "expand")
        self.v, self.gate = (nn.Linear(d_model, width, bias=False) for _ in "vg")
        self.conv = ShortConv(width, settings.conv_width, silu=False)
        self.out = nn.Linear(width, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        info: SequenceInfo,
        state: ConvState | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, ConvState | None]:
        v, kept = self.conv(self.v(x), info.segments, state, keep_state, info.kernels)
        return self.out(F.silu(self.gate(x)) * v), kept

    def flops_per_token(self, length: int) -> float:
        return 2.0 * sum(p.numel() for p in self.parameters())

    def state_bytes(self, length: int) -> int:
        past, width = self.conv.width - 1, self.out.in_features
        return past * (width * self.out.weight.element_size() + 8)

    def residual_outputs(self) -> list[nn.Linear]:
        return [self.out]
