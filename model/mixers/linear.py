"""The linear-time mixer: one recurrence, chosen by decay, write, feature map and surroundings.

    S_t = S' + phi(k_t) u_t^T      S' = D_t S_{t-1}      y_t = phi(q_t)^T S_t [ / phi(q_t)^T z_t ]
    u_t = v_t (additive write), dt_t v_t (timestep), or beta_t (v_t - S'^T phi(k_t)) (delta rule)
    phi(k_t) = 1 - exp(decay) instead of a mapped projection (complement)

The linear transformer, Performer, RetNet, GLA, HGRN2, Mamba-2, DeltaNet and others are presets of
this class (conf/mixer/), not classes. The recurrence itself is `kernels.linear_attention`.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import LinearState, gated_norm, linear_attention
from model.decays import DECAYS
from model.feature_maps import FEATURE_MAPS, build_feature_map
from model.feature_maps.base import Mapped
from model.layers import ConvState, RMSNorm, ShortConv, l2_norm
from model.linear_config import LinearSettings
from model.pattern import Depth
from model.sequence import SequenceInfo, rotate
from model.widths import check_features, whole_width


class LinearMixerState(NamedTuple):
    recurrence: LinearState
    conv_q: ConvState | None
    conv_k: ConvState | None
    conv_v: ConvState | None
    feature_map: tuple | None


class LinearMixer(nn.Module):
    def __init__(
        self, settings: LinearSettings, d_model: int, norm_eps: float, depth: Depth
    ) -> None:
        super().__init__()
        self.settings = settings
        self.heads, self.qk_heads = settings.heads, settings.qk_heads or settings.heads
        qk = "heads" if settings.qk_heads is None else "qk_heads"
        key_dim = whole_width(d_model, settings.expand_k, "expand_k", self.qk_heads, qk)
        value_dim = whole_width(d_model, settings.expand_v, "expand_v", self.heads)
        dim = key_dim // self.qk_heads
        if settings.rope_base is not None and dim % 2:
            raise ValueError(
                f"rotary positions turn pairs, and {qk}={self.qk_heads}, "
                f"expand_k={settings.expand_k} give the odd key width {dim}: "
                f"choose other {qk}, or rope_base=null"
            )
        self.key_dim, self.value_dim = key_dim, value_dim
        self.feature_map = build_feature_map(
            settings.feature_map, settings, self.qk_heads, dim, depth
        )
        self.rotate_first = FEATURE_MAPS[settings.feature_map].of_dot_product
        self.features = self.feature_map.features
        narrower = {"taylor": f"lower expand_k, or give more {qk}"}
        check_features(settings.feature_map, self.features, dim, self.heads, "expand_k", narrower)
        has_keys = settings.write != "complement"
        self.q = nn.Linear(d_model, key_dim, bias=False)
        self.k = nn.Linear(d_model, key_dim, bias=False) if has_keys else None
        self.v = nn.Linear(d_model, value_dim, bias=False)
        self.gate = None
        if settings.output_gate != "none":
            self.gate = nn.Linear(d_model, value_dim, bias=False)
        self.conv_q = self.conv_k = self.conv_v = None
        if settings.conv_width:
            self.conv_q = ShortConv(key_dim, settings.conv_width)
            self.conv_k = ShortConv(key_dim, settings.conv_width) if has_keys else None
            self.conv_v = ShortConv(value_dim, settings.conv_width)
        self.decay = DECAYS[settings.decay](settings, d_model, self.heads * self.features, depth)
        self.beta = nn.Linear(d_model, self.heads) if settings.write == "delta" else None
        self.skip = nn.Parameter(torch.empty(self.heads)) if settings.skip else None
        self.norm = RMSNorm(value_dim // self.heads, norm_eps) if settings.output_norm else None
        self.out = nn.Linear(value_dim, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        info: SequenceInfo,
        state: LinearMixerState | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, LinearMixerState | None]:
        settings = self.settings
        q, conv_q = self._project(self.q, self.conv_q, x, info, state and state.conv_q, keep_state)
        k, conv_k = self._project(self.k, self.conv_k, x, info, state and state.conv_k, keep_state)
        v, conv_v = self._project(self.v, self.conv_v, x, info, state and state.conv_v, keep_state)
        v = v.unflatten(-1, (self.heads, -1))
        beta = None
        if self.beta is not None:
            beta = settings.beta_max * self.beta(x).float().sigmoid()
        log_decay, written = self._decay_and_values(x, v)
        mapped = self._map(q, k, log_decay, info, state and state.feature_map)
        q, k = mapped.q, mapped.k
        if settings.qk_norm:
            q, k = l2_norm(q), l2_norm(k)
        if settings.rope_base is not None and not self.rotate_first:
            rotation = info.rotation(self.features, settings.rope_base)
            q, k = rotate(q, rotation), rotate(k, rotation)
        y, recurrence = linear_attention(
            q,
            k,
            written,
            _together(log_decay, mapped.log_decay),
            beta,
            scale=self.features**-0.5,
            normalize=settings.normalize,
            segments=info.segments,
            state=state.recurrence if state else None,
            backend=info.kernels,
        )
        if self.skip is not None:
            y = y + self.skip.to(y.dtype)[:, None] * v
        kept = None
        if keep_state:
            kept = LinearMixerState(recurrence, conv_q, conv_k, conv_v, mapped.state)
        return self.out(self._gate(y, x, info)), kept

    def _decay_and_values(self, x: Tensor, v: Tensor) -> tuple[Tensor | None, Tensor]:
        """The log-decay of inputs x, and what is written of values v [B, T, H, V]."""
        if self.settings.write != "timestep":
            return self.decay(x), v
        steps = self.decay.steps(x)
        return self.decay.of_steps(steps), (v * steps[..., None]).to(v.dtype)

    def _map(
        self,
        q: Tensor,
        k: Tensor | None,
        log_decay: Tensor | None,
        info: SequenceInfo,
        state: tuple | None,
    ) -> Mapped:
        """Projections [B, T, key_dim] as mapped queries and keys [B, T, heads, features]."""
        q = q.unflatten(-1, (self.qk_heads, -1))
        if k is None:
            q = self._shared(self.feature_map.function(q))
            return Mapped(q, (-torch.expm1(log_decay)).to(q.dtype))
        k = k.unflatten(-1, (self.qk_heads, -1))
        if self.settings.rope_base is not None and self.rotate_first:
            rotation = info.rotation(q.shape[-1], self.settings.rope_base)
            q, k = rotate(q, rotation), rotate(k, rotation)
        mapped = self.feature_map(q, k, info, state)
        of_map = mapped.log_decay
        if of_map is not None:
            of_map = self._shared(of_map[..., None])[..., 0]
        return Mapped(self._shared(mapped.q), self._shared(mapped.k), of_map, mapped.state)

    def _shared(self, x_btgk: Tensor) -> Tensor:
        """[B, T, qk_heads, K] -> [B, T, heads, K], each repeated for the heads that share it."""
        if self.qk_heads == self.heads:
            return x_btgk
        shared = x_btgk[:, :, :, None].expand(-1, -1, -1, self.heads // self.qk_heads, -1)
        return shared.flatten(2, 3)

    def _gate(self, y: Tensor, x: Tensor, info: SequenceInfo) -> Tensor:
        """[B, T, H, V] -> [B, T, H * V]: the norm of each head, and the output gate."""
        if self.gate is None:
            return (y if self.norm is None else self.norm(y)).flatten(-2)
        gate, activation = self.gate(x), self.settings.output_gate
        if self.norm is not None and not self.settings.norm_after_gate:
            return gated_norm(y, self.norm.weight, gate, activation, self.norm.eps, info.kernels)
        y = y * (F.silu(gate) if activation == "swish" else gate.sigmoid()).view_as(y)
        return (y if self.norm is None else self.norm(y)).flatten(-2)

    def init_weights(self) -> None:
        if self.skip is not None:
            nn.init.ones_(self.skip)

    def _project(
        self,
        projection: nn.Linear | None,
        conv: ShortConv | None,
        x: Tensor,
        info: SequenceInfo,
        state: ConvState | None,
        keep_state: bool,
    ) -> tuple[Tensor | None, ConvState | None]:
        if projection is None:
            return None, None
        y, kept = projection(x), None
        if conv is not None:
            y, kept = conv(y, info.segments, state, keep_state, info.kernels)
        return y, kept

    def kernel_shape(self) -> tuple[str, int, int, bool]:
        """(family, key width, value width, normalised): what selects the compiled kernel."""
        value_width = self.value_dim // self.heads
        family = self.decay.family
        if family in ("none", "head") and self.feature_map.state_bytes:
            family = "scalar"  # the map's running maximum is a decay per token
        family = family if self.beta is None else f"delta_{family}"
        return family, self.features, value_width, self.settings.normalize

    def layer_shapes(self) -> set[tuple[str, int, int, bool]]:
        """{("gated_norm", width of a head, heads, swish)}, or nothing; see also `ShortConv`."""
        if self.gate is None or self.norm is None or self.settings.norm_after_gate:
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
        return 2 * (weights + taps) + recurrence + self.feature_map.flops_per_token

    def state_bytes(self, length: int) -> int:
        normalizer = self.heads * self.features if self.settings.normalize else 0
        past = max(self.settings.conv_width - 1, 0)
        widths = [self.key_dim, self.value_dim] + ([self.key_dim] if self.k is not None else [])
        conv = past * sum(width * self.q.weight.element_size() + 8 for width in widths)
        recurrence = 4 * (self.features * self.value_dim + normalizer) + 8
        return recurrence + conv + self.feature_map.state_bytes

    def residual_outputs(self) -> list[nn.Linear]:
        return [self.out]


def _together(log_decay: Tensor | None, of_map: Tensor | None) -> Tensor | None:
    """The product of the mixer's decay and one [B, T, H], or None, of the feature map."""
    if log_decay is None or of_map is None:
        return of_map if log_decay is None else log_decay
    return log_decay + (of_map[..., None] if log_decay.dim() == 4 else of_map)
