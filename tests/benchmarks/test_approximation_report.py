"""Tables, verdicts and the picture from known errors, complete and not."""

import io

import matplotlib.pyplot as plt
import pytest
from rich.console import Console

from benchmarks.approximation_errors import IID, MEAN
from benchmarks.approximation_picture import draw
from benchmarks.approximation_report import (
    MEASURES,
    advantages,
    chance,
    curves,
    seeds,
    show,
    slope,
    verdicts,
)
from benchmarks.approximation_results import Results
from benchmarks.saved import read_results
from conf.cli import CONF


def results(power: float = -0.5, independent: float = 1.5, factor: float = 1.0) -> dict:
    """FAVOR+ whose error is features^power, and `independent` times that with independent rows."""
    points = [
        {
            "sweep": "features", "features": features, "scale": 0.25, "length": 512, "seed": seed,
            "errors": {
                name: {
                    "outputs": (1 + seed) * of_rows * features**power,
                    "weights": (1 + seed) * of_rows * features**power / 2,
                }
                for name, of_rows in (("favor", factor), (IID, factor * independent))
            },
        }
        for features in (4, 16, 64)
        for seed in range(3)
    ]  # fmt: skip
    machine = {
        "cpu": "Some CPU", "cores": 2, "threads": 2, "torch": "2.13", "python": "3.11",
        "revision": "abc",
    }  # fmt: skip
    settings = {"dim": 4, "length": 512, "scale": 0.25, "random_features": 16}
    return {"machine": machine, "settings": settings, "points": points}


def shown(results: dict) -> list[str]:
    text = io.StringIO()
    show(results, Console(file=text, width=200))
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


def test_medians_spreads_and_slopes_follow_the_errors():
    curve = curves(results(), "features", "outputs")["favor"]
    assert [spread.median for spread in curve.values()] == [1.0, 0.5, 0.25]
    assert curve[4].by_seed == {0: 0.5, 1: 1.0, 2: 1.5}
    assert str(curve[4]) == "1 ±0.5"
    assert slope(curve) == pytest.approx(-0.5)
    assert advantages(results(), "weights") == pytest.approx([1.5, 1.5, 1.5])


def test_a_sign_test_counts_seeds():
    assert chance(3, 3) == 1 / 8
    assert chance(2, 3) == 1 / 2
    assert chance(0, 3) == 1


def test_verdicts_say_what_holds():
    outputs, _, rows, _ = verdicts(results())
    assert outputs.startswith("FAVOR+ errs less with more features, relative error of outputs: 1 ")
    assert "0.25 with 64, as features^-0.50" in outputs
    assert rows.startswith("orthogonal rows err less than independent ones")
    assert "factor 1.500 (median), better with 3 of 3 seeds" in rows


def test_verdicts_say_what_does_not_hold():
    outputs, _, rows, _ = verdicts(results(power=0.5, independent=0.5))
    assert outputs.startswith("FAVOR+ DOES NOT err less with more features")
    assert rows.startswith("orthogonal rows DO NOT err less")
    assert "better with 0 of 3 seeds, which chance would give with probability 1" in rows


def test_errors_of_zero_are_shown_as_zero_and_no_ratio_is_taken_of_them(tmp_path):
    nothing = results(factor=0.0)
    lines = shown(nothing)
    assert "favor 0 ±0 0 ±0 0 ±0" in lines
    outputs, _, rows, _ = verdicts(nothing)
    assert outputs.endswith(
        "0 with 4, 0 with 64, no slope: an error is 1e-14 or less, which is rounding"
    )
    assert rows.startswith("orthogonal rows are not compared with independent ones")
    draw(nothing, tmp_path / "approximation.png")


def test_a_seed_is_compared_at_the_counts_where_both_errors_are_no_rounding():
    some = results()
    some["points"][0]["errors"]["favor"]["outputs"] = 0.0
    some["points"][3]["errors"][IID]["outputs"] = 3e-15
    assert advantages(some, "outputs") == pytest.approx([1.5, 1.5, 1.5])


def test_what_is_missing_is_a_dash_and_nothing_is_compared_with_it(tmp_path):
    some = results()
    alone = {"favor": {"outputs": 0.1, "weights": 0.1}}
    some["points"] = [*some["points"][:4], some["points"][6] | {"errors": alone}]
    lines = shown(some)
    assert "favor 1 ±0.5 0.25 0.1" in lines
    assert f"{IID} 1.5 ±0.8 0.38 -" in lines
    assert seeds(some) == "1 to 3 seeds"
    assert len(advantages(some, "outputs")) == 3
    draw(some, tmp_path / "approximation.png")


def test_sweeps_without_features_draw_no_verdict(tmp_path):
    one = {"sweep": "scale", "features": 16, "scale": 0.5, "length": 512, "seed": 0}
    errors = {name: {"outputs": 0.1, "weights": 0.1} for name in (MEAN, "taylor", "relu")}
    alone = results() | {"points": [one | {"errors": errors}]}
    assert list(verdicts(alone)) == []
    assert "taylor 0.1" in shown(alone)
    draw(alone, tmp_path / "approximation.png")
    assert (tmp_path / "approximation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("factor", "scale", "title"),
    [(1.0, "log", "3 seeds"), (0.0, "linear", "errors of exactly 0 lie at or below the axis")],
)
def test_the_picture_has_a_curve_a_map_and_can_show_zeros(
    factor, scale, title, tmp_path, monkeypatch
):
    monkeypatch.setattr(plt, "close", lambda figure: None)
    draw(results(factor=factor), tmp_path / "approximation.png")
    figure = plt.gcf()
    monkeypatch.undo()
    panel = figure.axes[0]
    assert [list(line.get_ydata()) for line in panel.get_lines()] == [
        [of_rows * x for x in (1.0, 0.5, 0.25)] for of_rows in (factor, 1.5 * factor)
    ]
    assert panel.get_yscale() == scale
    assert figure.get_suptitle().endswith(title)
    plt.close("all")


def test_the_published_table_and_verdicts_are_those_of_the_raw_numbers():
    text = (CONF.parent / "docs/results.md").read_text()
    published = read_results(CONF.parent / "benchmarks/results/approximation.json", Results)
    columns = [
        curves(published, "features", measure)[rows]
        for measure in MEASURES
        for rows in ("favor", IID)
    ]
    for count in columns[0]:
        assert f"| {count} | {' | '.join(str(curve[count]) for curve in columns)} |" in text
    sentences = " ".join(text.replace("\n>", " ").split())
    for verdict in verdicts(published):
        assert verdict in sentences
    assert f"revision {published['machine']['revision']}" in text
