"""The error measures on cases with a known answer, and that nothing later is seen."""

import pytest
import torch
from torch import nn

from benchmarks.approximation_errors import IID, MAPS, MEAN, Point, all_maps, errors, inputs
from benchmarks.approximation_errors import random_maps as draw
from model.feature_maps.base import VectorMap
from model.feature_maps.taylor import taylor

POINT = Point(dim=4, length=9, scale=0.5, seed=3)


def found(name: str, feature_map: nn.Module | None, point: Point = POINT) -> dict[str, float]:
    return errors(point, {name: feature_map})[name]


def test_equal_weights_err_as_computed_by_hand():
    q, k, v = inputs(POINT)
    outputs, means, variation = [], [], 0.0
    for i in range(POINT.length):
        weights = torch.softmax(k[: i + 1] @ q[i] / 2, dim=0)
        outputs.append(weights @ v[: i + 1])
        means.append(v[: i + 1].mean(0))
        variation += (weights - 1 / (i + 1)).abs().sum().item() / 2
    outputs, means = torch.stack(outputs), torch.stack(means)
    of_mean = found(MEAN, None)
    assert of_mean["weights"] == pytest.approx(variation / POINT.length, rel=1e-12)
    assert of_mean["outputs"] == pytest.approx(
        ((outputs - means).norm() / outputs.norm()).item(), rel=1e-12
    )


def test_a_map_whose_kernel_is_that_of_softmax_attention_has_no_error():
    # exp(s) is a sum of s^n / n!: with scores below 0.2, 5 terms of it err by less than 1e-5.
    class Expansion(VectorMap):
        def __init__(self) -> None:
            super().__init__(self._powers, 0)

        def _powers(self, x):
            x = x / 2**0.5
            powers, terms = torch.ones_like(x[..., :1]), []
            for n in range(5):
                terms.append(powers / torch.tensor(n + 1.0, dtype=x.dtype).lgamma().exp() ** 0.5)
                powers = (powers[..., :, None] * x[..., None, :]).flatten(-2)
            return torch.cat(terms, -1)

    of_map = found("expansion", Expansion(), Point(4, 9, 0.02, 3))
    assert of_map["outputs"] < 1e-9
    assert of_map["weights"] < 1e-9


def test_a_token_without_any_weight_counts_half():
    nothing = VectorMap(torch.zeros_like, 4)
    assert found("nothing", nothing) == {"outputs": pytest.approx(1), "weights": pytest.approx(0.5)}


@pytest.mark.parametrize("scale", [0.25, 30.0])
def test_blocks_of_queries_change_nothing(scale, monkeypatch):
    point = Point(8, 70, scale, 0)
    whole = errors(point, all_maps(8, 16, 0))
    monkeypatch.setattr("benchmarks.approximation_errors._ROWS", 16)
    for name, of_map in errors(point, all_maps(8, 16, 0)).items():
        assert of_map == pytest.approx(whole[name], rel=1e-9), name


def test_the_running_maximum_of_exponential_maps_leaves_the_weights_as_they_are():
    q, k, _ = inputs(POINT)
    expected = torch.exp(q[:, None] + k).sum(-1).tril()
    expected = expected / expected.sum(1, keepdim=True)
    exact = (q @ k.T / 2).masked_fill(~torch.ones(9, 9).tril().bool(), -torch.inf).softmax(1)
    variation = (exact - expected).abs().sum(1).mean().item() / 2
    assert found("exp", all_maps(4, 16, 0)["exp"])["weights"] == pytest.approx(variation, rel=1e-9)


def test_every_map_that_may_have_a_denominator_is_measured():
    maps = all_maps(4, 16, 0)
    assert set(maps) == {*MAPS, IID, MEAN}
    assert {"elu1", "favor", "taylor", "hedgehog", "cosformer", "dpfp"} <= set(MAPS)
    assert not {"identity", "silu"} & set(MAPS)
    of_taylor = found("taylor", maps["taylor"])
    assert of_taylor == found("taylor", VectorMap(taylor, 15))


def test_random_rows_are_orthogonal_or_independent_and_new_for_each_seed():
    maps = draw(8, 8, seed=0)
    gram = maps["favor"].projection @ maps["favor"].projection.T
    assert (gram - gram.diagonal().diag()).abs().max() < 1e-5
    rows = maps[IID].projection
    assert (rows @ rows.T - (rows @ rows.T).diagonal().diag()).abs().max() > 0.5
    for name, feature_map in draw(8, 8, seed=1).items():
        assert not torch.equal(feature_map.projection, maps[name].projection)


def test_more_features_and_orthogonal_rows_err_less():
    def mean_error(features: int) -> dict[str, float]:
        of_seeds = [errors(Point(8, 64, 0.2, s), draw(8, features, s)) for s in range(20)]
        names = of_seeds[0]
        return {n: sum(found[n]["weights"] for found in of_seeds) / 20 for n in names}

    few, many = mean_error(8), mean_error(512)
    assert many["favor"] < few["favor"] / 4
    assert few["favor"] < 0.95 * few[IID]
