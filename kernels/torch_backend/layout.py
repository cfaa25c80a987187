"""Cut tokens into chunks, and say which tokens of a chunk may see each other.

Chunks come first: [N, B, H, C, ...]. Every chunk's tensors are then contiguous, and so are "all
states but the last" and "all states but the first" of a buffer [N + 1, ...], which lets batched
matrix products read and write them in place.

Axis letters: N chunks, B batch, H heads, C tokens of a chunk, R rows per token, K key width,
V value width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class DocumentMasks(NamedTuple):
    """0/1 in the working dtype, broadcastable over heads."""

    same: Tensor  # [N, B, 1, C, C]: query and key belong to one document
    reach_in: Tensor  # [N, B, 1, C]: the query belongs to the document of the incoming state
    reach_out: Tensor  # [N, B, 1, C]: the key belongs to the document of the outgoing state
    carry: Tensor  # [N, B, 1]: both states belong to the same document


class Chunks(NamedTuple):
    """A row cut into chunks, in the working type; decay per token and beta like queries."""

    q: Tensor  # [N, B, H, C, K], times scale
    k: Tensor  # [N, B, H, C, K]
    v: Tensor  # [N, B, H, C, V]
    decay: Tensor | None  # None, [H], [N, B, H, C] or [N, B, H, C, K]
    beta: Tensor | None  # [N, B, H, C]
    masks: DocumentMasks | None


class Decayed(NamedTuple):
    """Rows and keys of all chunks with decays and document masks applied.

    A row reads the states: the query of a token, and with the delta rule its key as well. The R
    rows of a token lie next to each other.
    """

    scores: Tensor  # [N * B * H, C R, C], row by key of the same chunk, 0 for keys of later tokens
    rows: Tensor  # [N, B, H, C R, K], decayed from the start of the chunk
    keys: Tensor  # [N, B, H, C, K], decayed to the end of the chunk
    kept: Tensor | None  # [N, B * H, 1 or K, 1], what is left of a state; None: all of it


class DecayedGradients(NamedTuple):
    """Gradients of the parts of `Decayed`, with all tokens of a chunk in [N * B * H, C R or C, ..].

    log_kept is the gradient of the logarithm of `kept`, None where the decay needs none.
    """

    scores: Tensor
    rows: Tensor
    keys: Tensor
    log_kept: Tensor | None  # [N * B * H, K]


def cut(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    segments: Tensor | None,
    first: Tensor | None,
    scale: float,
    chunk_size: int,
    work: torch.dtype,
) -> Chunks:
    """Rows as in `linear_attention` in chunks of `chunk_size` tokens, or of what a row has.

    Args:
        first: [B], document of the incoming state, or None if it is that of the first token.
        scale: multiplies the queries.
        work: the working type.
    """
    per_token = decay is not None and decay.dim() > 1
    chunk = min(chunk_size, q.shape[1])
    if per_token:  # decays that differ from token to token are handled by halving
        chunk = 1 << (chunk - 1).bit_length()
    queries, keys, values = (to_chunks(x, chunk, work) for x in (q, k, v))
    return Chunks(
        queries if scale == 1.0 else queries * scale,
        keys,
        values,
        to_chunks(decay, chunk, work) if per_token else decay,
        None if beta is None else to_chunks(beta, chunk, work),
        None if segments is None else document_masks(segments, first, chunk, work),
    )


def to_chunks(x: Tensor, chunk: int, dtype: torch.dtype) -> Tensor:
    """[B, T, H, ...] -> contiguous [N, B, H, C, ...]; the last chunk is padded with zeros."""
    length = x.shape[1]
    padding = -length % chunk
    if padding:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, padding))
    x = x.unflatten(1, (-1, chunk)).transpose(0, 1).transpose(2, 3)
    return x.to(dtype).contiguous()


def from_chunks(x: Tensor, length: int) -> Tensor:
    """[N, B, H, C, ...] -> [B, T, H, ...] (a view where possible), padding dropped."""
    return x.transpose(2, 3).transpose(0, 1).flatten(1, 2)[:, :length]


def document_masks(
    segments: Tensor, state_segment: Tensor | None, chunk: int, dtype: torch.dtype
) -> DocumentMasks:
    """Masks for segments [B, T]; padding continues the last document."""
    batch, length = segments.shape
    padding = -length % chunk
    if padding:
        segments = torch.cat([segments, segments[:, -1:].expand(batch, padding)], dim=1)
    tokens = segments.unflatten(1, (-1, chunk)).transpose(0, 1)
    last = tokens[:, :, -1]
    first_state = tokens[0, :, 0] if state_segment is None else state_segment
    incoming = torch.cat([first_state[None], last[:-1]])
    return DocumentMasks(
        same=(tokens[..., :, None] == tokens[..., None, :]).to(dtype).unsqueeze(2),
        reach_in=(tokens == incoming[..., None]).to(dtype).unsqueeze(2),
        reach_out=(tokens == last[..., None]).to(dtype).unsqueeze(2),
        carry=(incoming == last).to(dtype).unsqueeze(2),
    )


def level_blocks(scores: Tensor, half: int) -> Tensor:
    """View of [M, C R, C] as the blocks [M, C / (2 half), half R, half] of one level of halving.

    Every block of 2 half tokens contributes its lower left quarter: rows of its right half, keys of
    its left half.
    """
    count, rows, chunk = scores.shape
    return scores.as_strided(
        (count, chunk // (2 * half), half * rows // chunk, half),
        (rows * chunk, 2 * half * (rows + 1), chunk, 1),
        half * rows,
    )
