"""How far linear attention with a feature map is from softmax attention, in float64.

Softmax attention weighs the tokens j <= i by a_ij = softmax_j(q_i.k_j / sqrt(d)), a linear mixer
with denominator by b_ij = phi(q_i).phi(k_j) / sum_j phi(q_i).phi(k_j). Two errors, of a whole row:

- weights: the total variation sum_j |a_ij - b_ij| / 2, mean over i; from 0 to 1, the share of the
  weight that is on the wrong tokens. (A divergence such as KL would be infinite for relu, which
  gives some tokens no weight.) A row without any weight, which relu may leave, counts 1/2;
- outputs: |y - y~| / |y| with y_i = sum_j a_ij v_j, norms over all tokens and channels.

Inputs are independent normal numbers, values N(0, 1), queries and keys such that the scores
q.k / sqrt(d) have the standard deviation `scale`, which is an inverse temperature. Trained queries
and keys are not like that: the errors compare maps, they do not predict a model's.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.presets import preset
from model.feature_maps import FEATURE_MAPS, build_feature_map
from model.pattern import Depth
from model.sequence import SequenceInfo

MAPS = tuple(name for name, known in FEATURE_MAPS.items() if known.sign != "signed")
IID = "favor, iid rows"
MEAN = "mean of values"  # all weights equal: what no attention at all would do
_ROWS = 256  # queries whose weights are formed at once


@dataclass(frozen=True)
class Point:
    """One attention problem: head width, tokens, standard deviation of the scores, random seed."""

    dim: int
    length: int
    scale: float
    seed: int


def errors(point: Point, maps: dict[str, nn.Module | None]) -> dict[str, dict[str, float]]:
    """{name: {"outputs": .., "weights": ..}} of maps by any names; None stands for equal weights.

    Float64, in blocks of queries: memory grows with the length, not with its square.
    """
    q, k, v = inputs(point)
    mapped = {name: _mapped(feature_map, q, k) for name, feature_map in maps.items()}
    exact_norm, differences = 0.0, dict.fromkeys(maps, 0.0)
    variations = dict.fromkeys(maps, 0.0)
    for start in range(0, point.length, _ROWS):
        end = min(start + _ROWS, point.length)
        hidden = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
        scores = q[start:end] @ k[:end].T * point.dim**-0.5
        exact = scores.masked_fill(hidden, -torch.inf).softmax(dim=1)
        exact_norm += (exact @ v[:end]).square().sum().item()
        for name, parts in mapped.items():
            wrong = parts.weights(start, end).masked_fill(hidden, 0)
            total = wrong.sum(dim=1, keepdim=True)
            wrong = exact - torch.where(total > 0, wrong / total, 0)
            differences[name] += (wrong @ v[:end]).square().sum().item()
            variations[name] += wrong.abs().sum().item() / 2
    return {
        name: {
            "outputs": (differences[name] / exact_norm) ** 0.5,
            "weights": variations[name] / point.length,
        }
        for name in maps
    }


def inputs(point: Point) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each [T, d]; q.k / sqrt(d) is a sum of d products of variance scale^2 / d."""
    generator = torch.Generator().manual_seed(point.seed)
    shape = (3, point.length, point.dim)
    q, k, v = torch.randn(shape, generator=generator, dtype=torch.float64)
    return q * point.scale**0.5, k * point.scale**0.5, v


def all_maps(dim: int, features: int, seed: int) -> dict[str, nn.Module | None]:
    """Every map that may have a denominator, as the mixers start with it, and what to beat."""
    maps: dict[str, nn.Module | None] = {name: _build(name, dim) for name in MAPS}
    return {MEAN: None} | maps | random_maps(dim, features, seed)


def random_maps(dim: int, features: int, seed: int) -> dict[str, nn.Module]:
    """FAVOR+ with orthogonal rows, as the mixers have it, and with independent ones."""
    maps = {
        name: _build("favor", dim, random_features=features, projection_seed=seed)
        for name in ("favor", IID)
    }
    rows = maps[IID].projection
    # Another seed than that of the inputs, which would start with the same numbers.
    rows.copy_(torch.randn(rows.shape, generator=torch.Generator().manual_seed(2**32 + seed)))
    return maps


def _build(name: str, dim: int, **options: int) -> nn.Module:
    settings = preset("linear", feature_map=name, heads=1, **options)
    feature_map = build_feature_map(name, settings, 1, dim, Depth(0, 1))
    if hasattr(feature_map, "init_weights"):
        feature_map.init_weights()
    return feature_map


class _Mapped(NamedTuple):
    """passed: logarithm of what the state has been multiplied by until each token; None: nothing.

    That of the running maximum of exponential maps.
    """

    q: Tensor  # [T, features]
    k: Tensor  # [T, features]
    passed: Tensor | None = None  # [T]

    def weights(self, start: int, end: int) -> Tensor:
        """Of queries `start` to `end` with the keys before `end`, not normalised."""
        products = self.q[start:end] @ self.k[:end].T
        if self.passed is None:
            return products
        # Positive for later keys only, which are masked.
        return products * (self.passed[start:end, None] - self.passed[:end]).clamp(max=0).exp()


@torch.no_grad()
def _mapped(feature_map: nn.Module | None, q: Tensor, k: Tensor) -> _Mapped:
    if feature_map is None:
        return _Mapped(torch.ones_like(q[:, :1]), torch.ones_like(k[:, :1]))
    info = SequenceInfo.of(torch.empty(1, len(q)))
    mapped = feature_map(q[None, :, None], k[None, :, None], info)
    passed = None if mapped.log_decay is None else mapped.log_decay[0, :, 0].cumsum(0)
    return _Mapped(mapped.q[0, :, 0], mapped.k[0, :, 0], passed)
