"""python -m benchmarks.approximation: verdicts from known errors, mistakes, a tiny run."""

import json

import pytest

from benchmarks import approximation as command
from benchmarks.approximation_errors import IID
from benchmarks.approximation_report import advantages, chance, curves, slope, verdicts

TINY = ["--dim", "4", "--length", "12", "--features", "4", "8", "--scales", "0.5", "1"]
TINY += ["--lengths", "8", "12", "--seeds", "2"]


def results(power: float = -0.5, independent: float = 1.5) -> dict:
    """FAVOR+ whose error is features^power, and `independent` times that with independent rows."""
    errors = [
        {
            "sweep": "features", "map": name, "features": features, "seed": seed,
            "outputs": (1 + seed) * factor * features**power,
            "weights": (1 + seed) * factor * features**power / 2,
        }
        for name, factor in (("favor", 1.0), (IID, independent))
        for features in (4, 16, 64)
        for seed in range(3)
    ]  # fmt: skip
    return {"errors": errors}


def test_medians_spreads_and_slopes_follow_the_errors():
    curve = curves(results(), "features", "outputs")["favor"]
    assert [spread.median for spread in curve.values()] == [1.0, 0.5, 0.25]
    assert curve[4].values == (0.5, 1.0, 1.5)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--features", "0"], "'0' is not a whole number from 1 to 65536"),
        (["--dim", "32.0"], "'32.0' is not a whole number from 1 to 256"),
        (["--lengths", "8193"], "'8193' is not a whole number from 1 to 8192"),
        (["--scales", "hot"], "'hot' is not a number from 1e-6 to 100, such as 0.5"),
        (["--scale", "nan"], "'nan' is not a number from 1e-6 to 100"),
        (["--seed", "3"], "unrecognized arguments: --seed 3"),
        (["--read", "x.json", "--seeds", "3"], "--read measures nothing: leave out --seeds"),
    ],
)
def test_mistakes_are_answered_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory"),
        ("{", "not written by this command"),
        ("{}", "not written by this command, lacks machine, settings, errors"),
    ],
)
def test_a_file_that_is_no_result_is_refused(text, message, tmp_path, capsys):
    path = tmp_path / "errors.json"
    if text is not None:
        path.write_text(text)
    assert command.main(["--read", str(path), "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --read {path}: {message}")
    assert error.count("\n") == 1


def test_an_output_that_is_no_folder_is_refused(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert command.main([*TINY, "--output", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --output {path}: File exists")


def test_a_run_leaves_every_seed_and_is_shown_again(tmp_path, capsys):
    assert command.main([*TINY, "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    saved = json.loads((tmp_path / "approximation.json").read_text())
    assert saved["settings"]["random_features"] == 16
    favor = [row for row in saved["errors"] if row["map"] == "favor"]
    at = [(row["sweep"], row[row["sweep"]], row["seed"]) for row in favor]
    points = {"features": (4, 8), "scale": (0.5, 1.0), "length": (8, 12)}
    assert sorted(at) == sorted((s, x, seed) for s in points for x in points[s] for seed in (0, 1))
    assert (tmp_path / "approximation.png").read_bytes().startswith(b"\x89PNG")
    again = tmp_path / "again"
    source = str(tmp_path / "approximation.json")
    assert command.main(["--read", source, "--output", str(again)]) == 0
    assert capsys.readouterr().out == shown.replace(str(tmp_path), str(again))
    assert not (again / "approximation.json").exists()
