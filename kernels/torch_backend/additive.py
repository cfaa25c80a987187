"""The additive write over chunks: S_t = D_t S_{t-1} + k_t v_t^T, y_t = q_t^T S_t.

Outputs are the decayed scores times the values, plus the decayed queries times the incoming state.
The backward is written by hand: it keeps scores and states of the forward, and needs few passes
over large tensors.

Axis letters: N chunks, B batch, H heads, C tokens of a chunk, K key width, V value width.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.derivatives import refuse_second_derivative
from kernels.torch_backend.decayed import decayed, decayed_gradients
from kernels.torch_backend.layout import Decayed, DecayedGradients, DocumentMasks
from kernels.torch_backend.products import add_product, product, product_over_values
from kernels.torch_backend.states import chunk_state_gradients, chunk_states, log_kept_gradient


def additive_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    initial: Tensor,
    length: int,
    masks: DocumentMasks | None,
    dtype: torch.dtype,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs [N, B, H, C, V] and final state [B, H, K, V].

    Args:
        q, k, v: [N, B, H, C, K or V], contiguous, zero in the padding after token `length`.
        decay, length, masks: as in `decayed`.
        initial: [B, H, K, V].
        dtype, normalize: operands of the large products, as in `products`.
    """
    masks = (None,) * 4 if masks is None else masks
    return AdditiveChunks.apply(q, k, v, decay, initial, length, dtype, normalize, *masks)


class AdditiveChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor | None,
        initial: Tensor,
        length: int,
        dtype: torch.dtype,
        normalize: bool,
        *masks: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        documents = None if masks[0] is None else DocumentMasks(*masks)
        parts, saved = decayed(q, k, decay, length, documents, dtype)
        states = chunk_states(parts.keys, v, parts.kept, initial, dtype, normalize)
        out = product(parts.scores, v.flatten(0, 2), dtype, normalize)
        add_product(out, parts.rows.flatten(0, 2), states[:-1].flatten(0, 1), dtype, normalize)
        ctx.save_for_backward(v, decay, states, *parts, *saved)
        ctx.dtype, ctx.normalize = dtype, normalize
        return out.view_as(v), states[-1].view_as(initial).clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("linear_attention", ", or backend='reference'")
        with torch.autocast(d_out.device.type, enabled=False):
            return _backward(ctx, d_out.contiguous(), d_final)


def _backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
    v, decay, states, scores, queries, keys, kept, *saved = ctx.saved_tensors
    dtype, normalize = ctx.dtype, ctx.normalize
    d_states = chunk_state_gradients(queries, d_out, kept, d_final, dtype, normalize)
    v3, d_out3 = v.flatten(0, 2), d_out.flatten(0, 2)
    incoming, d_outgoing = states[:-1].flatten(0, 1), d_states[1:].flatten(0, 1)
    d_v = product(scores.mT, d_out3, dtype, normalize)
    add_product(d_v, keys.flatten(0, 2), d_outgoing, dtype, normalize)
    gradients = DecayedGradients(
        product_over_values(d_out3, v3, dtype, normalize),
        product_over_values(d_out3, incoming, dtype, normalize),
        product_over_values(v3, d_outgoing, dtype, normalize),
        log_kept_gradient(states, d_states, kept) if ctx.needs_input_grad[3] else None,
    )
    parts = Decayed(scores, queries, keys, kept)
    d_q, d_k, d_decay = decayed_gradients(parts, saved, gradients, decay, dtype)
    d_initial = d_states[0].view_as(d_final).clone()
    return d_q, d_k, d_v.view_as(v), d_decay, d_initial, *(None,) * 7
