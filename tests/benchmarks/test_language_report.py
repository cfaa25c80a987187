"""Tables and verdicts from known perplexities, complete and not."""

import io
import math
import re
import statistics

import matplotlib.pyplot as plt
import pytest
from rich.console import Console

from benchmarks.language_models import MODELS
from benchmarks.language_picture import draw
from benchmarks.language_report import perplexities, show, verdicts
from benchmarks.language_results import Results
from benchmarks.saved import read_results
from conf.cli import CONF


def results(**by_model: list[float]) -> dict:
    """Trainings with these perplexities, by seed."""
    trainings = [
        {
            "model": model, "seed": seed, "overrides": [], "parameters": 1000,
            "nats_per_token": math.log(value), "seconds": 1.0,
        }
        for model, values in by_model.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    machine = {
        "cpu": "Some CPU", "cores": 2, "threads": 1, "torch": "2.13", "python": "3.11",
        "revision": "abc",
    }  # fmt: skip
    return {
        "machine": machine,
        "settings": {"tokens": 5000, "data": "abc"},
        "trainings": trainings,
    }


def shown(results: dict) -> list[str]:
    text = io.StringIO()
    show(results, Console(file=text, width=200))
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


def test_perplexity_is_the_mean_over_seeds():
    lines = shown(results(none=[80.0, 82.0], gla=[50.0]))
    assert "none no decay 1,000 81.0 ±1.4 4.394 ±0.017 2 23.21" in lines
    assert "gla a decay per channel and token 1,000 50.0 3.912 1 14.77" in lines


@pytest.mark.parametrize(
    ("fixed", "outcome"),
    [
        ([40.0, 41.0], "as published; fixed is lower by"),
        ([90.0, 95.0], "NOT as published; fixed is higher by"),
        ([40.0, 95.0], "not decided, seeds differ; fixed is"),
    ],
)
def test_a_step_is_as_published_where_every_seed_says_so(fixed, outcome):
    (verdict,) = verdicts(results(none=[80.0, 82.0], fixed=fixed))
    assert verdict.startswith(f"none > fixed: {outcome}")


def test_gains_are_paired_by_seed():
    by = math.log(2)
    (verdict,) = verdicts(results(scalar=[80.0, 20.0], gla=[40.0, 10.0]))
    assert verdict == (
        f"scalar > gla: as published; gla is lower by {by:.3f} ±0.000 nats per token, lower with 2 "
        "of 2 seeds"
    )


def test_hybrids_are_compared_with_both_pure_forms():
    found = list(verdicts(results(gla=[50.0], softmax=[40.0], gla_3to1=[45.0])))
    assert found[0].startswith("gla_3to1 against gla alone: lower by 0.105")
    assert found[1].startswith("gla_3to1 against softmax alone: higher by 0.118")
    assert len(found) == 2


def test_models_without_a_common_seed_are_not_compared():
    found = results(none=[80.0], fixed=[60.0, 61.0])
    found["trainings"] = [t for t in found["trainings"] if (t["model"], t["seed"]) != ("fixed", 0)]
    (verdict,) = verdicts(found)
    assert verdict == "none > fixed: not compared; no seed in common"


def test_the_picture_has_a_dot_per_training(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    draw(results(none=[80.0, 82.0], gla=[50.0]), tmp_path / "language.png")
    assert (tmp_path / "language.png").stat().st_size > 1000
    dots = [line for line in kept[0].axes[0].lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in dots] == [
        pytest.approx([80.0, 82.0]), pytest.approx([50.0])
    ]  # fmt: skip


def test_the_published_results_have_every_model_with_three_seeds_and_their_table():
    found = perplexities(read_results(CONF.parent / "benchmarks/results/language.json", Results))
    text = (CONF.parent / "docs/results.md").read_text()
    assert list(found) == list(MODELS)
    for name, by_seed in found.items():
        values = list(by_seed.values())
        assert len(values) >= 3
        mean, spread = statistics.fmean(values), statistics.stdev(values)
        assert re.search(rf"\| `{name}` \|.*\| {mean:.1f} ±{spread:.1f} \|", text), name
