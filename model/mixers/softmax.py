"""Softmax attention as a mixer: grouped-query heads, rotary or no positions, KV cache."""

from torch import Tensor, nn

from model.attention import attention, cached_attention
from model.attention_mask import AttentionMask
from model.config import SoftmaxSettings
from model.flex import prepare_block_mask
from model.kv_cache import KVState, extend, trim
from model.sequence import SequenceInfo, rotate


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
        self.rope_base = settings.rope_base
        self.mask = AttentionMask(settings.window, settings.anchors, settings.alibi)
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

        keys = extend(state, k, v, info) if keep_state or state is not None else None
        if state is None:
            y = attention(q, k, v, info, self.mask)
        else:
            y = cached_attention(q, keys, info, self.mask)
        return self.out(y.flatten(-2)), trim(keys, self.mask) if keep_state else None

    def prepare(self, info: SequenceInfo) -> None:
        if self.rope_base is not None:
            info.rotation(self.head_dim, self.rope_base)
        prepare_block_mask(info, self.mask)

    def flops_per_token(self, length: int) -> float:
        weights = sum(m.weight.numel() for m in (self.q, self.k, self.v, self.out))
        # Per key seen: q^T k and the weighted sum of v, and ALiBi's slope times distance.
        per_key = 4 * self.heads * self.head_dim + (2 * self.heads if self.mask.alibi else 0)
        return 2 * weights + per_key * self.mask.mean_visible(length)

    def state_bytes(self, length: int) -> int:
        per_key = 2 * self.kv_heads * self.head_dim * self.k.weight.element_size() + 2 * 8
        return self.mask.most_kept(length) * per_key

    def residual_outputs(self) -> list[nn.Linear]:
        return [self.out]
