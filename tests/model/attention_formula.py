"""Softmax attention by its definition in float64, and the paths of the code that must equal it."""

import itertools
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

import model.attention
from model.attention import Attended, attention, continued_attention, explicit_attention
from model.attention_mask import AttentionMask
from model.flex import block_mask
from model.kv_cache import extend, trim
from model.random_anchors import changes
from model.sequence import SequenceInfo
from model.windowed import windowed

LENGTH = 70


def segments_of(length: int) -> Tensor:
    """Two rows: long documents; documents of one token first, last and in a run, and gaps."""
    segments = torch.zeros(2, length, dtype=torch.int64)
    segments[0, length * 3 // 7 :] = 1
    for start in (1, 2, length // 2, length // 2 + 1, length - 1):
        segments[1, start:] += 2
    return segments


def tensors(heads: int, kv_heads: int, length: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, length, n, 8, generator=generator, dtype=torch.float64).to(dtype)
        for n in (heads, kv_heads, kv_heads)
    ]


def formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor,
    mask: AttentionMask,
    extra: Tensor | None = None,
) -> Attended:
    """The definition.

    extra: [B, T, H], the logit of one more key with the value 0.
    """
    heads, width = q.shape[2:]
    k, v = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q, k) / width**0.5
    scores = scores + added_to_scores(segments, heads, mask)
    if extra is None:
        return Attended(torch.einsum("bhts,bshd->bthd", F.softmax(scores, dim=-1), v), None)
    scores = torch.cat((scores, extra.transpose(1, 2)[..., None]), dim=-1)
    weights = F.softmax(scores, dim=-1)
    y = torch.einsum("bhts,bshd->bthd", weights[..., :-1], v)
    return Attended(y, weights[..., -1].transpose(1, 2))


def added_to_scores(segments: Tensor, heads: int, mask: AttentionMask) -> Tensor:
    """[B, H, T, T]: -inf where a key is not seen, the cost of its distance elsewhere."""
    return _added(tuple(map(tuple, segments.tolist())), heads, mask)


@cache
def _added(rows: tuple[tuple[int, ...], ...], heads: int, mask: AttentionMask) -> Tensor:
    """Written out for every row, query and key."""
    length = len(rows[0])
    shape = (len(rows), heads, length, length)
    added = torch.full(shape, -torch.inf, dtype=torch.float64)
    slopes = paper_slopes(heads) if mask.alibi else torch.zeros(heads, dtype=torch.float64)
    for (row, numbers), i in itertools.product(enumerate(rows), range(length)):
        document = [j for j in range(length) if numbers[j] == numbers[i]]
        near = [j for j in document if j <= i and (mask.window is None or i - j < mask.window)]
        far = [j for j in document[: mask.anchors] if j <= i]
        far += [document[p] for p in drawn_positions(mask, i - document[0])]
        seen = torch.tensor([*near, *far])
        added[row, :, i, seen] = -slopes[:, None] * (i - seen)
    return added


def drawn_positions(mask: AttentionMask, position: int) -> list[int]:
    """The random anchors of a query, one token after the other that leaves its window."""
    if mask.drawn is None:
        return []
    turns = changes(mask.drawn.places, mask.drawn.seed, mask.drawn.block)
    held = {}
    for candidate in range(position - mask.window - mask.anchors + 1):
        place = candidate % len(turns)
        if candidate in turns[place]:
            held[place] = candidate + mask.anchors
    return list(held.values())


def paper_slopes(heads: int) -> Tensor:
    """Press et al., 2022, section 3, and their code for head counts that are no power of two."""
    power = 1 << (heads.bit_length() - 1)
    if heads == power:
        return torch.tensor(
            [2.0 ** (-8 * (i + 1) / heads) for i in range(heads)], dtype=torch.float64
        )
    return torch.cat((paper_slopes(power), paper_slopes(2 * power)[::2][: heads - power]))


def by_document(q, k, v, segments, mask, extra=None):
    return attention(q, k, v, SequenceInfo.of(segments, segments), mask, extra)


def masked(q, k, v, segments, mask, extra=None):
    info = SequenceInfo.of(segments, segments)
    return explicit_attention(q, k, v, info, info, mask, extra)


def in_blocks(q, k, v, segments, mask, extra=None):
    """Whole rows at once: what compiled code and prompts on a GPU do with a window."""
    if mask.window is None:
        return masked(q, k, v, segments, mask, extra)
    info = SequenceInfo.of(segments, segments)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    by_head = model.attention._by_head(extra, q)
    y = windowed(q, k, v, info, mask, by_head, model.attention._QUERY_BLOCK)
    return model.attention._attended(y, extra)


def by_flex(q, k, v, segments, mask, extra=None):
    info = SequenceInfo.of(segments, segments)
    info.block_masks[mask.description] = block_mask(info, mask)
    return attention(q, k, v, info, mask, extra)


def in_pieces(q, k, v, segments, mask, extra=None):
    keys, known, outputs, start = None, (None, None), [], 0
    for piece in itertools.cycle((1, 17, 1, 1, 4)):
        at = slice(start, start + piece)
        info = SequenceInfo.of(segments[:, at], segments[:, at], *known)
        some = extra if extra is None or extra.dim() == 1 else extra[:, at]
        piece_of = [x[:, at] for x in (q, k, v)]
        if keys is None:
            attended = attention(*piece_of, info, mask, some)
            keys = trim(extend(None, *piece_of[1:], info), mask)
        else:
            attended, keys = continued_attention(*piece_of, info, mask, keys, some)
        outputs.append(attended)
        known = (info.segments[:, -1], info.positions[:, -1] + 1)
        if mask.window is not None:
            assert keys.k.shape[1] <= mask.window - 1 + mask.far_keys
        start += piece
        if start >= q.shape[1]:
            break
    shares = None if extra is None else torch.cat([o.share for o in outputs], dim=1)
    return Attended(torch.cat([o.y for o in outputs], dim=1), shares)


PATHS = [by_document, masked, in_blocks, by_flex, in_pieces]
