"""Sparse plus linear attention: exact weights near and at anchors, linear attention for the rest.

    y_t = (sum_{j in E_t} exp(q_t.k_j / sqrt(D)) v_j + sum_{j in L_t} phi(q_t).phi(k_j) v_j) / Z_t

with Z_t the sum of all these weights: one normaliser. E_t are the tokens of the window and the
anchors of the document, L_t all others before them. Every token is in one of the two: it enters the
state of the linear part when it leaves the window, or later, when another takes its place as an
anchor, and never the other way round, so that nothing is ever subtracted.

With D_t the sum of the linear weights and N_t the weighted values, the linear part is to a query
like one more key: its logit is log D_t, its value N_t / D_t. The softmax over the exact keys and
that one is the formula; the logits' largest is taken off by the softmax itself, so that neither the
exponentials nor phi, which is known up to exp(its `log_factor`), overflow.

Heads differ in what is exact: the first `window_heads` have the window, the last `anchor_heads` the
anchors, and all of them the linear part under it. A head without a window still sees its own token.

Sources: Arora et al., 2024 (Based: a window beside a Taylor map), Zhang et al., 2024 (LoLCATs: a
window and a linear part under one normaliser).
"""

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import LinearState, linear_attention
from kernels.state import LEAST_DENOMINATOR
from model.attention import Attended, attention, explicit_attention
from model.attention_mask import AttentionMask
from model.feature_maps import FEATURE_MAPS, build_feature_map
from model.feature_maps.base import wide
from model.flex import prepare_block_mask
from model.kv_cache import KVState, extend, trim
from model.layers import RMSNorm
from model.pattern import Depth
from model.random_anchors import RandomAnchors
from model.sequence import SequenceInfo, rotate
from model.sparse_linear_config import SparseLinearSettings
from model.widths import check_features

_PIECE = 256  # tokens after a cache that are handled at once

# A linear part without weight: its logit is so far below that of the query's own token, which every
# softmax has, that it is 0 next to it, in float64 too.
_NOTHING = 200.0


class SparseLinearState(NamedTuple):
    keys: tuple[KVState, ...]  # not rotated; one for each group of heads
    recurrence: LinearState
    feature_map: tuple | None


class Group(NamedTuple):
    """Neighbouring heads that see the same keys exactly."""

    heads: slice
    mask: AttentionMask


class Written(NamedTuple):
    """What enters the state at each token."""

    k: Tensor  # [B, T, H, D]
    v: Tensor  # [B, T, H, D]
    exists: Tensor  # bool [B, T, H]; where not, k and v are those of the token itself


class SparseLinearMixer(nn.Module):
    def __init__(
        self, settings: SparseLinearSettings, d_model: int, norm_eps: float, depth: Depth
    ) -> None:
        super().__init__()
        self.heads, self.head_dim = settings.heads, _head_dim(settings, d_model)
        self.rope_base = settings.rope_base
        width = self.heads * self.head_dim
        self.q, self.k, self.v = (nn.Linear(d_model, width, bias=False) for _ in "qkv")
        self.q_norm, self.k_norm = (
            RMSNorm(self.head_dim, norm_eps) if settings.qk_norm else None for _ in "qk"
        )
        self.output_gate, self.gate = settings.output_gate, None
        if settings.output_gate != "none":
            self.gate = nn.Linear(d_model, width, bias=False)
        self.out = nn.Linear(width, d_model, bias=False)
        self.feature_map = build_feature_map(
            settings.feature_map, settings, self.heads, self.head_dim, depth
        )
        self.features = self.feature_map.features
        check_features(settings.feature_map, self.features, self.head_dim, self.heads, "head_dim")
        self.map_is_of_turned = FEATURE_MAPS[settings.feature_map].of_dot_product
        self.drawn = None
        if settings.random_anchors:
            seed = settings.anchor_seed or 0
            self.drawn = RandomAnchors(settings.random_anchors, seed, depth.index)
        self.groups = _groups(settings, self.drawn)

    def forward(
        self,
        x: Tensor,
        info: SequenceInfo,
        state: SparseLinearState | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, SparseLinearState | None]:
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, self.head_dim))
            for projection in (self.q, self.k, self.v)
        )
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        y, state = self.attend(q, k, v, info, state, keep_state)
        return self.out(self._gated(y.flatten(-2), x)), state

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        info: SequenceInfo,
        state: SparseLinearState | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, SparseLinearState | None]:
        """What is between the projections: q, k (not yet turned), v and y are [B, T, H, D]."""
        if state is None:
            return self._rows(q, k, v, info, keep_state)
        outputs = []
        for at, some in info.pieces(_PIECE):
            y, state = self._piece(q[:, at], k[:, at], v[:, at], some, state)
            outputs.append(y)
        return torch.cat(outputs, dim=1), state if keep_state else None

    def _rows(
        self, q: Tensor, k: Tensor, v: Tensor, info: SequenceInfo, keep_state: bool
    ) -> tuple[Tensor, SparseLinearState | None]:
        """Whole rows [B, T, H, D], which start with the start of a document."""
        turned_q, turned_k = self._turned(q, info), self._turned(k, info)
        index = torch.arange(q.shape[1], device=q.device)
        of_map = turned_k if self.map_is_of_turned else k
        parts = []
        for heads, mask in self.groups:
            position = mask.leaving(info.positions)
            token = torch.where(position < 0, index, index - info.positions + position)
            parts.append(_written(of_map[:, :, heads], v[:, :, heads], token, position >= 0))
        mean, logit, recurrence, map_state = self._linear(q, turned_q, turned_k, parts, info, None)
        attended = [
            attention(
                *(x[:, :, heads] for x in (turned_q, turned_k, v)), info, mask, logit[..., heads]
            )
            for heads, mask in self.groups
        ]
        kept = None
        if keep_state:
            keys = tuple(
                trim(extend(None, k[:, :, heads], v[:, :, heads], info), mask, mask.window)
                for heads, mask in self.groups
            )
            kept = SparseLinearState(keys, recurrence, map_state)
        return _together(attended, mean), kept

    def _piece(
        self, q: Tensor, k: Tensor, v: Tensor, info: SequenceInfo, state: SparseLinearState
    ) -> tuple[Tensor, SparseLinearState]:
        """A few tokens that follow those of `state`, each compared with every key it carries."""
        turned_q = self._turned(q, info)
        keys, turned_keys, parts = [], [], []
        for (heads, mask), carried in zip(self.groups, state.keys, strict=True):
            seen = extend(carried, k[:, :, heads], v[:, :, heads], info)
            turned = self._turned(seen.k, SequenceInfo(seen.segments, seen.positions))
            position = mask.leaving(info.positions)
            found = (seen.positions[:, None] == position[..., None]) & (
                seen.segments[:, None] == info.segments[..., None]
            )
            own = torch.arange(seen.k.shape[1], device=q.device)[-q.shape[1] :]
            token = torch.where(position < 0, own, found.int().argmax(dim=-1))
            of_map = turned if self.map_is_of_turned else seen.k
            parts.append(_written(of_map, seen.v, token, position >= 0))
            keys.append(seen)
            turned_keys.append(turned)
        own_k = torch.cat([turned[:, -q.shape[1] :] for turned in turned_keys], dim=2)
        mean, logit, recurrence, map_state = self._linear(q, turned_q, own_k, parts, info, state)
        attended = [
            explicit_attention(
                turned_q[:, :, heads],
                turned,
                seen.v,
                info,
                SequenceInfo(seen.segments, seen.positions),
                mask,
                logit[..., heads],
            )
            for (heads, mask), seen, turned in zip(self.groups, keys, turned_keys, strict=True)
        ]
        kept = tuple(
            trim(seen, mask, mask.window) for (_, mask), seen in zip(self.groups, keys, strict=True)
        )
        return _together(attended, mean), SparseLinearState(kept, recurrence, map_state)

    def _linear(
        self,
        q: Tensor,
        turned_q: Tensor,
        turned_k: Tensor,
        parts: list[Written],
        info: SequenceInfo,
        state: SparseLinearState | None,
    ) -> tuple[Tensor, Tensor, LinearState, tuple | None]:
        """The linear part of queries [B, T, H, D] over what was written, group by group of heads.

        turned_k: the tokens' own keys.

        Returns:
            its mean value [B, T, H, D], the logarithm of its sum of weights [B, T, H], and the
            states of the recurrence and of the feature map after the last token.
        """
        written = Written(*(torch.cat(x, dim=2) for x in zip(*parts, strict=True)))
        of_map = turned_q if self.map_is_of_turned else q
        carried = state and state.feature_map
        mapped = self.feature_map(of_map, written.k, info, carried, written.exists)
        phi_k = wide(mapped.k).masked_fill(~written.exists[..., None], 0)
        sums, recurrence = linear_attention(
            wide(mapped.q),
            phi_k,
            F.pad(wide(written.v), (0, 1), value=1.0),  # one more channel sums the weights
            mapped.log_decay,
            segments=info.segments,
            state=state and state.recurrence,
            backend=info.kernels,
        )
        total = sums[..., -1]
        exists = total > LEAST_DENOMINATOR
        total = torch.where(exists, total, 1)
        mean = (sums[..., :-1] / total[..., None]).masked_fill(~exists[..., None], 0)
        logit = total.log()
        if mapped.log_factor is not None:
            logit = logit + mapped.log_factor
        with torch.no_grad():
            own = (wide(turned_q) * wide(turned_k)).sum(-1) * self.head_dim**-0.5
        return mean, torch.where(exists, logit, own - _NOTHING), recurrence, mapped.state

    def _turned(self, x: Tensor, info: SequenceInfo) -> Tensor:
        if self.rope_base is None:
            return x
        return rotate(x, info.rotation(self.head_dim, self.rope_base))

    def _gated(self, y: Tensor, x: Tensor) -> Tensor:
        if self.gate is None:
            return y
        gate = self.gate(x)
        return y * (F.silu(gate) if self.output_gate == "swish" else gate.sigmoid())

    def prepare(self, info: SequenceInfo) -> None:
        if self.rope_base is not None:
            info.rotation(self.head_dim, self.rope_base)
        for _, mask in self.groups:
            prepare_block_mask(info, mask)

    def kernel_shape(self) -> tuple[str, int, int, bool]:
        """(family, key width, value width, normalised) of the recurrence, which is float32."""
        family = "scalar" if self.feature_map.state_bytes else "none"
        return family, self.features, self.head_dim + 1, False

    def flops_per_token(self, length: int) -> float:
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        # Per key seen: q^T k and the weighted sum of v. Per entry of the state: as `LinearMixer`.
        exact = sum(
            4 * self.head_dim * (heads.stop - heads.start) * mask.mean_visible(length)
            for heads, mask in self.groups
        )
        recurrence = 5 * self.heads * self.features * (self.head_dim + 1)
        return 2 * weights + exact + recurrence + self.feature_map.flops_per_token

    def state_bytes(self, length: int) -> int:
        size = self.k.weight.element_size()
        keys = 0
        for heads, mask in self.groups:
            per_key = 2 * (heads.stop - heads.start) * self.head_dim * size + 2 * 8
            keys += min(length, mask.window + mask.far_keys) * per_key
        recurrence = 4 * self.heads * self.features * (self.head_dim + 1) + 8
        return keys + recurrence + self.feature_map.state_bytes

    def residual_outputs(self) -> list[nn.Linear]:
        return [self.out]


def _written(k: Tensor, v: Tensor, token: Tensor, exists: Tensor) -> Written:
    """Keys and values [B, S, H, D] at the tokens [B or 1, T]."""
    at = token.expand(len(k), -1)[..., None, None].expand(-1, -1, *k.shape[2:])
    exists = exists.expand(len(k), -1)[..., None].expand(-1, -1, k.shape[2])
    return Written(k.gather(1, at), v.gather(1, at), exists)


def _together(attended: list[Attended], mean: Tensor) -> Tensor:
    """[B, T, H, D]: exact outputs, and the linear part with the weight that they left to it."""
    y = torch.cat([part.y for part in attended], dim=2)
    share = torch.cat([part.share for part in attended], dim=2)
    return y + share[..., None] * mean.to(y.dtype)


def _groups(settings: SparseLinearSettings, drawn: RandomAnchors | None) -> tuple[Group, ...]:
    heads = settings.heads
    windows_end = settings.window_heads or heads
    anchors_start = heads - (settings.anchor_heads or heads)
    borders = sorted({0, windows_end, anchors_start, heads})
    groups = []
    for start, end in itertools.pairwise(borders):
        window = settings.window if start < windows_end else 1
        mask = AttentionMask(window)
        if start >= anchors_start:
            mask = AttentionMask(window, settings.anchors, drawn=drawn)
        groups.append(Group(slice(start, end), mask))
    return tuple(groups)


def _head_dim(settings: SparseLinearSettings, d_model: int) -> int:
    if settings.head_dim is not None:
        return settings.head_dim
    head_dim, rest = divmod(d_model, settings.heads)
    if rest:
        raise ValueError(
            f"heads={settings.heads} does not divide d_model={d_model}; give a divisor, or head_dim"
        )
    settings.check_head_dim(head_dim, f"d_model={d_model} / heads={settings.heads} = {head_dim}")
    return head_dim
