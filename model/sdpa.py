"""torch's fused softmax attention, and one more key per query that it has no argument for.

The further key has a logit of its own for every query and the value 0: it takes part in the
denominator alone. A learned number per head is a sink (as in gpt-oss); the logarithm of a sum of
weights lets something outside of the softmax share its normaliser.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_ALIGNED = 8  # channels: fused kernels for 16 bits want widths that are multiples


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, extra: Tensor | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, causal if there is no mask.

    Args:
        q: [B, H, T, D]; k, v: [B, Hkv, S, D] with Hkv dividing H.
        mask: as `attn_mask` of `F.scaled_dot_product_attention`; None: causal, with S = T.
        extra: float32 (float64 with float64 inputs), finite, broadcastable to [B, H, T]: the logit
            of one more key of each query, whose value is 0.

    Returns:
        [B, H, T, D], or with `extra` [B, H, T, D + 1]: last the share of that key, what is missing
        from 1 in the weights of the others.
    """
    if extra is None:
        return _attend(q, k, v, mask, q.shape[-1])
    width = q.shape[-1]
    padding = -(width + 2) % _ALIGNED
    k, v = (F.pad(x, (0, 2 + padding, 1, 0)) for x in (k, v))  # the further key comes first
    k[..., 0, width : width + 2] = 1
    v[..., 0, width] = 1
    q = torch.cat((q, *_two_halves(extra.expand(q.shape[:3]) * width**0.5, q.dtype)), dim=-1)
    q = F.pad(q, (0, padding))
    if mask is None:
        # A query before the first one keeps the diagonal where it is: query i sees i + 1 keys.
        y = _attend(F.pad(q, (0, 0, 1, 0)), k, v, None, width)[:, :, 1:]
    else:
        seen = True if mask.dtype == torch.bool else 0.0
        y = _attend(q, k, v, F.pad(mask, (1, 0), value=seen), width)
    return y[..., : width + 1]


def _two_halves(logit: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`logit` [B, H, T] as two channels [B, H, T, 1], rounded and what the rounding left."""
    high = logit.to(dtype)
    low = (logit - high).detach().to(dtype)  # the gradient goes through the first, once
    return high[..., None], low[..., None]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, width: int) -> Tensor:
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        scale=width**-0.5,
        enable_gqa=q.shape[1] != k.shape[1],
    )
