"""Softmax attention as a mixer: grouped-query heads, rotary or no positions, KV cache.

Around it, each an option: an RMSNorm of every head's query and key, with weights that the heads
share, before the rotary positions (as in Qwen3); rotary positions of the first channels of a head
only; a learned logit per head in the denominator (sinks, as in gpt-oss); a gate of each output
channel (Qiu et al., 2025, Gated attention for large language models).

Keys and values may pass a short convolution, as in the linear mixers. With it, one layer can look
up what followed earlier copies of a token; `recall_init` lets training start from there.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import attention, continued_attention
from model.attention_mask import AttentionMask
from model.feature_maps.base import wide
from model.flex import prepare_block_mask
from model.kv_cache import KVState, extend, trim
from model.layers import ConvState, RMSNorm, ShortConv
from model.pattern import Depth
from model.random_anchors import RandomAnchors
from model.sequence import SequenceInfo, rotate
from model.softmax_config import SoftmaxSettings


class SoftmaxMixerState(NamedTuple):
    cache: KVState
    conv_k: ConvState | None
    conv_v: ConvState | None


class SoftmaxMixer(nn.Module):
    def __init__(
        self, settings: SoftmaxSettings, d_model: int, norm_eps: float, depth: Depth
    ) -> None:
        super().__init__()
        head_dim, origin = settings.head_dim, f"head_dim={settings.head_dim}"
        if head_dim is None:
            head_dim, rest = divmod(d_model, settings.heads)
            if rest:
                raise ValueError(
                    f"heads={settings.heads} does not divide d_model={d_model}; "
                    "give a divisor, or head_dim"
                )
            origin = f"d_model={d_model} / heads={settings.heads} = {head_dim}"
        self.heads, self.kv_heads, self.head_dim = settings.heads, settings.kv_heads, head_dim
        self.rope_base, self.recall_init = settings.rope_base, settings.recall_init
        self._built_with_base = settings.rope_base
        self.turned = settings.turned_channels(head_dim, origin)
        self.delayed_heads = -(-self.kv_heads // 2) if self.recall_init else 0
        self.drawn = None
        if settings.random_anchors:
            seed = settings.anchor_seed or 0
            self.drawn = RandomAnchors(settings.random_anchors, seed, depth.index)
        self.mask = AttentionMask(settings.window, settings.anchors, settings.alibi, self.drawn)
        self.q = nn.Linear(d_model, self.heads * head_dim, bias=False)
        self.k = nn.Linear(d_model, self.kv_heads * head_dim, bias=False)
        self.v = nn.Linear(d_model, self.kv_heads * head_dim, bias=False)
        self.q_norm = RMSNorm(head_dim, norm_eps) if settings.qk_norm else None
        self.k_norm = RMSNorm(head_dim, norm_eps) if settings.qk_norm else None
        self.sinks = nn.Parameter(torch.empty(self.heads)) if settings.sinks else None
        self.output_gate, self.gate = settings.output_gate, None
        if settings.output_gate != "none":
            self.gate = nn.Linear(d_model, self.heads * head_dim, bias=False)
        self.conv_k = self.conv_v = None
        if settings.conv_width:
            width, taps = self.kv_heads * head_dim, settings.conv_width
            delayed = self.delayed_heads * head_dim
            self.conv_k = ShortConv(width, taps, silu=False, delayed=delayed)
            self.conv_v = ShortConv(width, taps, silu=False)
        self.out = nn.Linear(self.heads * head_dim, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        info: SequenceInfo,
        state: SoftmaxMixerState | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, SoftmaxMixerState | None]:
        q, k, v = self.q(x), self.k(x), self.v(x)
        conv_k = conv_v = None
        if self.conv_k is not None:
            k_state, v_state = (state.conv_k, state.conv_v) if state else (None, None)
            k, conv_k = self.conv_k(k, info.segments, k_state, keep_state, info.kernels)
            v, conv_v = self.conv_v(v, info.segments, v_state, keep_state, info.kernels)
        q = q.unflatten(-1, (self.heads, self.head_dim))
        k, v = (x.unflatten(-1, (self.kv_heads, self.head_dim)) for x in (k, v))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope_base is not None:
            rotation = info.rotation(self.turned, self.rope_base)
            q, k = rotate(q, rotation), rotate(k, rotation)

        sinks = None if self.sinks is None else wide(self.sinks)
        keys = None
        if state is not None:
            attended, keys = continued_attention(q, k, v, info, self.mask, state.cache, sinks)
        else:
            attended = attention(q, k, v, info, self.mask, sinks)
        kept = None
        if keep_state:
            if keys is None:
                keys = trim(extend(None, k, v, info), self.mask)
            kept = SoftmaxMixerState(keys, conv_k, conv_v)
        y = attended.y.flatten(-2)
        return self.out(self._gated(y, x)), kept

    def _gated(self, y: Tensor, x: Tensor) -> Tensor:
        if self.gate is None:
            return y
        gate = self.gate(x)
        return y * (F.silu(gate) if self.output_gate == "swish" else gate.sigmoid())

    @torch.no_grad()
    def init_weights(self) -> None:
        """With `recall_init`, a query scores highest with keys made from its own token.

        Each key projection starts equal to that of the first query head that reads it, with unit
        gain, as trained attention tends to look (Trockman and Kolter, 2023, Mimetic initialization
        of self-attention layers). Half of the key heads see the token before through their
        convolution: their queries find what followed earlier copies of the current token, which is
        what induction heads have to learn (Olsson et al., 2022).
        """
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)  # "off-by-one" attention: as if one more score were 0
        if not self.recall_init:
            return
        nn.init.normal_(self.q.weight, std=self.q.in_features**-0.5)
        heads = self.q.weight.view(self.kv_heads, -1, self.head_dim, self.q.in_features)
        self.k.weight.copy_(heads[:, 0].flatten(0, 1))

    @torch.no_grad()
    def write_recalled(self) -> Tensor:
        """Starts to write what is looked up to the residual stream, turned by a random rotation.

        Heads that look for the token itself, and further query heads of a key, write nothing yet.

        Returns:
            [d_model, d_model], from a block input to what looking it up writes.
        """
        _orthogonal(self.v.weight)
        _orthogonal(self.out.weight)
        writes = self.out.weight.view(-1, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        writes[:, self.delayed_heads :] = 0
        writes[:, :, 1:] = 0
        values = self.v.weight.view(self.kv_heads, 1, self.head_dim, -1)
        values = values.expand(-1, self.heads // self.kv_heads, -1, -1).flatten(0, 2)
        return self.out.weight @ values

    def set_rope_base(self, base: float | None) -> None:
        """Another base of the rotary angles, None: that of the settings; without them, nothing."""
        if self.rope_base is not None:
            self.rope_base = self._built_with_base if base is None else base

    def prepare(self, info: SequenceInfo) -> None:
        if self.rope_base is not None:
            info.rotation(self.turned, self.rope_base)
        prepare_block_mask(info, self.mask)

    def flops_per_token(self, length: int) -> float:
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        # Per key seen: q^T k and the weighted sum of v, and ALiBi's slope times distance.
        per_key = 4 * self.heads * self.head_dim + (2 * self.heads if self.mask.alibi else 0)
        taps = sum(m.weight.numel() for m in (self.conv_k, self.conv_v) if m is not None)
        return 2 * (weights + taps) + per_key * self.mask.mean_visible(length)

    def state_bytes(self, length: int) -> int:
        per_key = 2 * self.kv_heads * self.head_dim * self.k.weight.element_size() + 2 * 8
        past = 0 if self.conv_k is None else self.conv_k.width - 1
        conv = 2 * past * (self.kv_heads * self.head_dim * self.k.weight.element_size() + 8)
        return self.mask.most_kept(length) * per_key + conv

    def residual_outputs(self) -> list[nn.Linear]:
        return [self.out]


def _orthogonal(weight: Tensor) -> None:
    """Fills `weight` as `nn.init.orthogonal_` does, which knows no 16-bit types."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    weight.copy_(nn.init.orthogonal_(torch.empty_like(weight, dtype=dtype)))
