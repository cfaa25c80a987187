"""The linear-time mixer: one recurrence, chosen by decay, write, feature map and surroundings.

    S_t = S' + phi(k_t) u_t^T      S' = D_t S_{t-1}      y_t = phi(q_t)^T S_t [ / phi(q_t)^T z_t ]
    u_t = v_t (additive write), or beta_t (v_t - S'^T phi(k_t)) (delta rule)

GLA, RetNet, the linear transformer, DeltaNet, Gated DeltaNet and KDA are presets of this class
(conf/mixer/), not classes. The recurrence itself is `kernels.linear_attention`.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from kernels import LinearState, gated_norm, linear_attention
from model.config import MAX_WIDTH, LinearSettings
from model.decays import DECAYS
from model.feature_maps import FEATURE_MAPS
from model.layers import ConvState, RMSNorm, ShortConv, l2_norm
from model.sequence import SequenceInfo, rotate


class LinearMixerState(NamedTuple):
    recurrence: LinearState
    conv_q: ConvState | None
    conv_k: ConvState | None
    conv_v: ConvState | None


class LinearMixer(nn.Module):
    def __init__(self, settings: LinearSettings, d_model: int, norm_eps: float) -> None:
        super().__init__()
        self.settings = settings
        self.heads = settings.heads
        key_dim = _width(d_model, settings.expand_k, self.heads, "expand_k")
        value_dim = _width(d_model, settings.expand_v, self.heads, "expand_v")
        if settings.rope_base is not None and key_dim // self.heads % 2:
            raise ValueError(
                f"rotary positions turn pairs, and heads={self.heads}, "
                f"expand_k={settings.expand_k} give the odd key width {key_dim // self.heads}: "
                "choose other heads, or rope_base=null"
            )
        self.key_dim, self.value_dim = key_dim, value_dim
        self.q = nn.Linear(d_model, key_dim, bias=False)
        self.k = nn.Linear(d_model, key_dim, bias=False)
        self.v = nn.Linear(d_model, value_dim, bias=False)
        self.gate = None
        if settings.output_gate != "none":
            self.gate = nn.Linear(d_model, value_dim, bias=False)
        self.conv_q = self.conv_k = self.conv_v = None
        if settings.conv_width:
            self.conv_q = ShortConv(key_dim, settings.conv_width)
            self.conv_k = ShortConv(key_dim, settings.conv_width)
            self.conv_v = ShortConv(value_dim, settings.conv_width)
        self.feature_map = FEATURE_MAPS[settings.feature_map]()
        self.decay = DECAYS[settings.decay](settings, d_model, key_dim)
        self.beta = nn.Linear(d_model, self.heads) if settings.write == "delta" else None
        self.norm = RMSNorm(value_dim // self.heads, norm_eps) if settings.output_norm else None
        self.out = nn.Linear(value_dim, d_model, bias=False)
        self.features = self.feature_map.features(key_dim // self.heads)

    def forward(
        self,
        x: Tensor,
        info: SequenceInfo,
        state: LinearMixerState | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, LinearMixerState | None]:
        q, conv_q = self._project(self.q, self.conv_q, x, info, state and state.conv_q, keep_state)
        k, conv_k = self._project(self.k, self.conv_k, x, info, state and state.conv_k, keep_state)
        v, conv_v = self._project(self.v, self.conv_v, x, info, state and state.conv_v, keep_state)
        q, k = self.feature_map(q), self.feature_map(k)
        if self.settings.qk_norm:
            q, k = l2_norm(q), l2_norm(k)
        if self.settings.rope_base is not None:
            rotation = info.rotation(self.features, self.settings.rope_base)
            q, k = rotate(q, rotation), rotate(k, rotation)
        beta = None
        if self.beta is not None:
            beta = self.settings.beta_max * self.beta(x).float().sigmoid()
        y, recurrence = linear_attention(
            q,
            k,
            v,
            self.decay(x),
            beta,
            scale=self.features**-0.5,
            normalize=self.settings.normalize,
            segments=info.segments,
            state=state.recurrence if state else None,
            backend=info.kernels,
        )
        kept = LinearMixerState(recurrence, conv_q, conv_k, conv_v) if keep_state else None
        return self.out(self._gate(y, x, info)), kept

    def _gate(self, y: Tensor, x: Tensor, info: SequenceInfo) -> Tensor:
        """[B, T, H, V] -> [B, T, H * V]: the norm of each head, and the output gate."""
        if self.gate is None:
            return (y if self.norm is None else self.norm(y)).flatten(-2)
        gate, activation = self.gate(x), self.settings.output_gate
        if self.norm is None:
            return y.flatten(-2) * (F.silu(gate) if activation == "swish" else gate.sigmoid())
        return gated_norm(y, self.norm.weight, gate, activation, self.norm.eps, info.kernels)

    def _project(
        self,
        projection: nn.Linear,
        conv: ShortConv | None,
        x: Tensor,
        info: SequenceInfo,
        state: ConvState | None,
        keep_state: bool,
    ) -> tuple[Tensor, ConvState | None]:
        y, kept = projection(x), None
        if conv is not None:
            y, kept = conv(y, info.segments, state, keep_state, info.kernels)
        return y.unflatten(-1, (self.heads, -1)), kept

    def kernel_shape(self) -> tuple[str, int, int, bool]:
        """(family, key width, value width, normalised): what selects the compiled kernel."""
        value_width = self.value_dim // self.heads
        family = self.decay.family if self.beta is None else f"delta_{self.decay.family}"
        return family, self.features, value_width, self.settings.normalize

    def layer_shapes(self) -> set[tuple[str, int, int, bool]]:
        """{("gated_norm", width of a head, heads, swish)}, or nothing; see also `ShortConv`."""
        if self.gate is None or self.norm is None:
            return set()
        width = self.value_dim // self.heads
        return {("gated_norm", width, self.heads, self.settings.output_gate == "swish")}

    def flops_per_token(self, length: int) -> float:
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        taps = sum(m.weight.numel() for m in self.modules() if isinstance(m, ShortConv))
        # Per head: decay the state (1), add k u^T (2), read q^T S (2), with the delta rule k^T S
        # too (2). Chunked forms spend more in matrix products; this is the recurrence's own cost,
        # the same at every length.
        per_entry = 5 if self.beta is None else 7
        recurrence = per_entry * self.features * self.value_dim
        return 2 * (weights + taps) + recurrence

    def state_bytes(self, length: int) -> int:
        normalizer = self.heads * self.features if self.settings.normalize else 0
        past = max(self.settings.conv_width - 1, 0)
        conv = past * (2 * self.key_dim + self.value_dim) * self.q.weight.element_size()
        return 4 * (self.features * self.value_dim + normalizer) + conv + (3 * 8 * past) + 8

    def residual_outputs(self) -> list[nn.Linear]:
        return [self.out]


def _width(d_model: int, factor: float, heads: int, name: str) -> int:
    width = d_model * factor
    if width > MAX_WIDTH:
        raise ValueError(
            f"{name}={factor} gives the width {width:g} (d_model={d_model}); widths go up to "
            f"{MAX_WIDTH}: lower {name} or d_model"
        )
    if not width.is_integer() or width % heads or not width:
        raise ValueError(
            f"{name}={factor} gives the width {width:g} (d_model={d_model}), which heads={heads} "
            f"does not divide into whole numbers; change {name} or heads"
        )
    return int(width)
