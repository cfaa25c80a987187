"""Rows and keys of a chunk with their decays: what additive write and delta rule share.

Rows read the states, one or more per token: its query, and with the delta rule its key as well.
Their scores with the keys of their chunk, the rows decayed from its start and the keys decayed to
its end are all that outputs and states need. How the decays get there is up to `scalar` and
`channel`, one of which these two functions choose.

Axis letters: N chunks, B batch, H heads, C tokens of a chunk, R rows per token, K key width.
"""

from types import ModuleType

import torch
from torch import Tensor

from kernels.torch_backend import channel, scalar
from kernels.torch_backend.layout import Decayed, DecayedGradients, DocumentMasks

Saved = tuple[Tensor | None, ...]


def decayed(
    rows: Tensor,
    k: Tensor,
    decay: Tensor | None,
    length: int,
    masks: DocumentMasks | None,
    dtype: torch.dtype,
) -> tuple[Decayed, Saved]:
    """The decayed parts, and what `decayed_gradients` needs of them.

    Args:
        rows: [N, B, H, C R, K], contiguous, the rows of one token next to each other.
        k: [N, B, H, C, K], contiguous, zero in the padding after token `length`.
        decay: None, [H], [N, B, H, C] or [N, B, H, C, K]; if per token, zero in the padding and C
            is a power of two.
        length: number of tokens before padding.
        masks: document masks, or None for one document.
        dtype: operands of the products, as in `products`.
    """
    return _family(decay).decayed(rows, k, decay, length, masks, dtype)


def decayed_gradients(
    parts: Decayed, saved: Saved, d: DecayedGradients, decay: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of rows, keys and, where `d.log_kept` is given, decay; overwrites `d`."""
    return _family(decay).decayed_gradients(parts, saved, d, dtype)


def _family(decay: Tensor | None) -> ModuleType:
    return channel if decay is not None and decay.dim() == 5 else scalar
