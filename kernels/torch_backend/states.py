"""The recurrence from chunk to chunk, forwards and backwards, shared by all decay families, and
its parts by both writes.

One [K, V] state per chunk, batch entry and head, kept in a buffer [N + 1, B * H, K, V]: entry n
is what chunk n receives, entry n + 1 what it hands on.
"""

import torch
from torch import Tensor

from kernels.torch_backend.products import store_product


def chunk_states(
    keys: Tensor,
    values: Tensor,
    kept: Tensor | None,
    initial: Tensor,
    dtype: torch.dtype,
    normalize: bool,
) -> Tensor:
    """All states of a row.

    Args:
        keys: [N, B, H, C, K], already decayed to the end of their chunk.
        values: [N, B, H, C, V].
        kept: [N, B * H, 1 or K, 1], fraction of a state left after the chunk; None for all of it.
        initial: [B, H, K, V].
        dtype, normalize: as in `products`; sums over chunks stay in the working type.
    """
    num_chunks = keys.shape[0]
    states = state_buffer(num_chunks, initial)
    states[0].copy_(initial.flatten(0, 1))
    updates = states[1:].flatten(0, 1)
    store_product(updates, keys.flatten(0, 2).mT, values.flatten(0, 2), dtype, normalize)
    for n in range(num_chunks):
        add_decayed(states[n + 1], states[n], None if kept is None else kept[n])
    return states


def chunk_state_gradients(
    queries: Tensor,
    d_output: Tensor,
    kept: Tensor | None,
    d_final: Tensor,
    dtype: torch.dtype,
    normalize: bool,
) -> Tensor:
    """Gradients with respect to every entry of the state buffer.

    Args:
        queries: [N, B, H, C, K], already decayed from the start of their chunk.
        d_output: [N, B, H, C, V].
        kept, dtype, normalize: as in `chunk_states`.
        d_final: [B, H, K, V].
    """
    num_chunks = queries.shape[0]
    grads = state_buffer(num_chunks, d_final)
    grads[num_chunks].copy_(d_final.flatten(0, 1))
    updates = grads[:-1].flatten(0, 1)
    store_product(updates, queries.flatten(0, 2).mT, d_output.flatten(0, 2), dtype, normalize)
    for n in reversed(range(num_chunks)):
        add_decayed(grads[n], grads[n + 1], None if kept is None else kept[n])
    return grads


def log_kept_gradient(states: Tensor, d_states: Tensor, kept: Tensor | None) -> Tensor | None:
    """[N * B * H, K] gradient of the logarithm of `kept`."""
    if kept is None:
        return None
    return ((states[:-1] * d_states[1:]).sum(3) * kept[..., 0]).flatten(0, 1)


def state_buffer(num_chunks: int, like: Tensor) -> Tensor:
    """Unwritten, for states like [B, H, K, V]."""
    batch, heads, key_width, value_width = like.shape
    return like.new_empty(num_chunks + 1, batch * heads, key_width, value_width)


def add_decayed(target: Tensor, source: Tensor, kept: Tensor | None) -> None:
    """target += kept * source."""
    if kept is None:
        target.add_(source)
    else:
        target.addcmul_(source, kept)
