"""Softmax attention as a mixer: grouped-query heads, rotary or no positions, KV cache."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.attention import attention, cached_attention
from model.config import SoftmaxSettings
from model.sequence import SequenceInfo, rotate


class KVState(NamedTuple):
    """Keys (rotated) and values of the tokens that later queries may see."""

    k: Tensor  # [B, S, Hkv, D]
    v: Tensor  # [B, S, Hkv, D]
    segments: Tensor  # int64 [B, S]


class SoftmaxMixer(nn.Module):
    def __init__(self, settings: SoftmaxSettings, d_model: int, norm_eps: float) -> None:
        super().__init__()
        head_dim = settings.head_dim
        if head_dim is None:
            head_dim, rest = divmod(d_model, settings.heads)
            if rest:
                raise ValueError(
                    f"heads={settings.heads} does not divide d_model={d_model}; "
                    "give a divisor, or head_dim"
                )
            if head_dim % 2 and settings.rope_base is not None:
                raise ValueError(
                    f"d_model={d_model} / heads={settings.heads} gives the odd head width "
                    f"{head_dim}, and rotary positions turn pairs: choose other heads, an even "
                    "head_dim, or rope_base=null"
                )
        self.heads, self.kv_heads, self.head_dim = settings.heads, settings.kv_heads, head_dim
        self.rope_base, self.window = settings.rope_base, settings.window
        self.q = nn.Linear(d_model, self.heads * head_dim, bias=False)
        self.k = nn.Linear(d_model, self.kv_heads * head_dim, bias=False)
        self.v = nn.Linear(d_model, self.kv_heads * head_dim, bias=False)
        self.out = nn.Linear(self.heads * head_dim, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        info: SequenceInfo,
        state: KVState | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, KVState | None]:
        q = self.q(x).unflatten(-1, (self.heads, self.head_dim))
        k = self.k(x).unflatten(-1, (self.kv_heads, self.head_dim))
        v = self.v(x).unflatten(-1, (self.kv_heads, self.head_dim))
        if self.rope_base is not None:
            rotation = info.rotation(self.head_dim, self.rope_base)
            q, k = rotate(q, rotation), rotate(k, rotation)

        if state is None:
            segments = info.segments
            y = attention(q, k, v, info, self.window)
        else:
            k = torch.cat((state.k.to(k.dtype), k), dim=1)
            v = torch.cat((state.v.to(v.dtype), v), dim=1)
            segments = torch.cat((state.segments, info.segments), dim=1)
            y = cached_attention(q, k, v, info.segments, segments, self.window)

        kept = None
        if keep_state:
            if segments is None:
                segments = torch.zeros(k.shape[:2], dtype=torch.int64, device=k.device)
            # The next query sees itself and the `window - 1` tokens before it.
            first = 0 if self.window is None else max(0, k.shape[1] - (self.window - 1))
            kept = KVState(*(x[:, first:] for x in (k, v, segments)))
        return self.out(y.flatten(-2)), kept

    def flops_per_token(self, length: int) -> float:
        weights = sum(m.weight.numel() for m in (self.q, self.k, self.v, self.out))
        seen = (length + 1) / 2  # keys per query, on average over a causal row
        if self.window is not None and self.window < length:
            w = self.window
            seen = (w * (w + 1) / 2 + (length - w) * w) / length
        return 2 * weights + 4 * seen * self.heads * self.head_dim

    def state_bytes(self, length: int) -> int:
        kept = length if self.window is None else min(length, self.window - 1)
        return kept * (2 * self.kv_heads * self.head_dim * self.k.weight.element_size() + 8)

    def residual_outputs(self) -> list[nn.Linear]:
        return [self.out]
