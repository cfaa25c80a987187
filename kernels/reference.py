"""The recurrence one token at a time: the oracle, and the decoding step.

    S_t = S' + k_t u_t^T      S' = D_t S_{t-1}; u_t = v_t, or beta_t (v_t - k_t^T S') (delta rule)
    y_t = scale * q_t^T S_t   or, normalised, q_t^T S_t / q_t^T z_t with z_t = D_t z_{t-1} + k_t

Runs in float32, or in float64 when the inputs are float64, and is differentiable by autograd.
Products are written element by element, so that autocast never touches them.
"""

import torch
from torch import Tensor

from kernels.state import LinearState, divide_or_zero, empty_state, work_dtype


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    *,
    scale: float,
    normalize: bool,
    segments: Tensor | None,
    state: LinearState | None,
    chunk_size: int | None,
) -> tuple[Tensor, LinearState]:
    """Arguments as in `linear_attention`, already validated; `chunk_size` has no meaning here."""
    work = work_dtype(v.dtype)
    S, z, segment = empty_state(q, v, normalize) if state is None else state
    if segments is not None and segment is None:
        segment = segments[:, 0]
    q, k, values = q.to(work), k.to(work), v.to(work)
    outputs = []
    for t in range(q.shape[1]):
        if segments is not None:
            new_document = (segments[:, t] != segment)[:, None, None]
            segment = segments[:, t]
            S = S.masked_fill(new_document[..., None], 0.0)
            z = None if z is None else z.masked_fill(new_document, 0.0)
        if decay is not None:
            kept = _kept_fraction(decay, t)
            S = S * kept[..., None]
            z = None if z is None else z * kept
        written = values[:, t]
        if beta is not None:
            written = beta[:, t, :, None] * (written - (k[:, t, :, :, None] * S).sum(-2))
        S = S + k[:, t, :, :, None] * written[:, :, None, :]
        y = (q[:, t, :, :, None] * S).sum(-2)
        if z is None:
            outputs.append(y * scale)
        else:
            z = z + k[:, t]
            outputs.append(divide_or_zero(y, (q[:, t] * z).sum(-1)))
    return torch.stack(outputs, dim=1).to(v.dtype), LinearState(S, z, segment)


def _kept_fraction(decay: Tensor, t: int) -> Tensor:
    """exp(log-decay) of token t, broadcastable to [B, H, K]."""
    if decay.dim() == 1:
        return decay.exp()[None, :, None]
    if decay.dim() == 3:
        return decay[:, t].exp()[..., None]
    return decay[:, t].exp()
