"""python -m benchmarks.approximation: mistakes, a tiny run that continues, files of others."""

import json

import pytest

from benchmarks import approximation as command
from tests.full_disk import files_end_at

TINY = ["--dim", "4", "--length", "12", "--features", "4", "8", "--scales", "0.5", "1"]
TINY += ["--lengths", "8", "12", "--seeds", "2"]
POINTS = {("features", 4), ("features", 8), ("scale", 0.5), ("scale", 1), ("length", 8)}
POINTS |= {("length", 12)}


def saved(folder) -> dict:
    return json.loads((folder / "approximation.json").read_text())


def measured(results: dict) -> list[tuple]:
    return [(p["sweep"], p[p["sweep"]], p["seed"]) for p in results["points"]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> dict:
    """Results of a tiny run."""
    return command.run(tmp_path_factory.mktemp("tiny") / "errors.json", command.parse(TINY))


@pytest.fixture
def undrawn(monkeypatch) -> None:
    monkeypatch.setattr(command, "draw", lambda results, path: None)


def stop_after(points: int, monkeypatch) -> None:
    """Ctrl-C while the next point is measured."""
    made, errors = [], command.errors

    def counted(*given):
        if len(made) == points:
            raise KeyboardInterrupt
        made.append(given)
        return errors(*given)

    monkeypatch.setattr(command, "errors", counted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--features", "0"], "'0' is not a whole number from 1 to 65536"),
        (["--dim", "32.0"], "'32.0' is not a whole number from 1 to 256"),
        (["--lengths", "8193"], "'8193' is not a whole number from 1 to 8192"),
        (["--scales", "hot"], "'hot' is not a number from 1e-6 to 100, such as 0.5"),
        (["--scale", "nan"], "'nan' is not a number from 1e-6 to 100"),
        (["--seed", "3"], "unrecognized arguments: --seed 3"),
        (["--length", "1"], "--length 1: one token has all the weight with any map"),
        (["--lengths", "8", "1"], "--lengths 1: one token has all the weight with any map"),
        (["--read", "x.json", "--seeds", "3"], "--read measures nothing: leave out --seeds"),
        (["--read", "x.json", "--dim", "32"], "--read measures nothing: leave out --dim"),
        (
            ["--read", "x", "--random-features", "128", "--scales", "1", "--fresh"],
            "--read measures nothing: leave out --random-features --scales --fresh",
        ),
    ],
)
def test_mistakes_are_answered_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def changed(results: dict, **values) -> str:
    return json.dumps({**results, **values})


WRONG = {
    "no_object": (lambda r: "3", "Input should be a valid dictionary"),
    "old_keys": (lambda r: '{"machine": {}, "settings": {}, "errors": []}', "machine.cpu: Field"),
    "a_number": (lambda r: changed(r, points=3), "points: Input should be a valid list"),
    "nothing": (lambda r: changed(r, points=[]), "points: List should have at least 1 item"),
    "settings": (lambda r: changed(r, settings={}), "settings.dim: Field required"),
    "no_map": (
        lambda r: changed(r, points=[r["points"][0] | {"errors": {"flavor": {}}}]),
        "points.0.errors.flavor.[key]: Input should be 'mean of values', ",
    ),
    "no_error": (
        lambda r: changed(
            r,
            points=[
                r["points"][0] | {"errors": {"favor": {"outputs": float("nan"), "weights": 0.1}}}
            ],
        ),
        "points.0.errors.favor.outputs: Input should be ",
    ),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_result_is_neither_shown_nor_added_to(
    text, reason, tiny, tmp_path, capsys
):
    file = tmp_path / "approximation.json"
    file.write_text(text(tiny))
    assert command.main(["--read", str(file), "--output", str(tmp_path / "new")]) == 2
    reason = f"{file}: not written by this command: {reason}"
    assert capsys.readouterr().err.startswith(f"error: --read {reason}")
    assert not (tmp_path / "new").exists()
    assert command.main([*TINY, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {reason}")
    assert error.endswith("; --fresh replaces it\n")


def test_no_file_is_refused(tmp_path, capsys):
    assert command.main(["--read", str(tmp_path / "x"), "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --read {tmp_path / 'x'}: No such file or directory; give a")
    assert error.count("\n") == 1


def test_an_output_that_is_no_folder_is_refused(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert command.main([*TINY, "--output", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --output {path}: File exists")


def test_a_full_disk_ends_with_one_line_and_keeps_what_was_saved(tmp_path, capsys):
    with files_end_at(2000):
        assert command.main([*TINY, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: [Errno 27] File too large")
    assert error.count("\n") == 1
    assert measured(saved(tmp_path)) == [("features", 4, 0), ("features", 8, 0)]


def test_a_run_leaves_every_seed_and_is_shown_again(tmp_path, capsys):
    assert command.main([*TINY, "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    results = saved(tmp_path)
    assert results["settings"] == {"dim": 4, "length": 12, "scale": 0.25, "random_features": 16}
    assert sorted(measured(results)) == sorted((s, x, seed) for s, x in POINTS for seed in (0, 1))
    assert (tmp_path / "approximation.png").read_bytes().startswith(b"\x89PNG")
    again = tmp_path / "again"
    source = str(tmp_path / "approximation.json")
    assert command.main(["--read", source, "--output", str(again)]) == 0
    assert capsys.readouterr().out == shown.replace(str(tmp_path), str(again))
    assert not (again / "approximation.json").exists()


def test_a_run_stopped_at_any_point_continues_to_the_same_numbers(
    tiny, undrawn, tmp_path, monkeypatch, capsys
):
    output = ["--output", str(tmp_path)]
    with monkeypatch.context() as patched:
        stop_after(3, patched)
        assert command.main([*TINY, *output]) == 130
    assert capsys.readouterr().err == "stopped; the same command continues\n"
    assert saved(tmp_path) == tiny | {"points": tiny["points"][:3]}
    assert command.main(["--read", str(tmp_path / "approximation.json"), *output]) == 0
    assert "medians of 1 seed " in capsys.readouterr().out
    with monkeypatch.context() as patched:
        stop_after(len(tiny["points"]) - 3, patched)
        assert command.main([*TINY, *output]) == 0
    assert saved(tmp_path) == tiny


def test_other_points_are_added_and_other_settings_refused(tiny, undrawn, tmp_path, capsys):
    output = ["--output", str(tmp_path)]
    file = tmp_path / "approximation.json"
    file.write_text(json.dumps(tiny))
    more = [*TINY, "--features", "16", "--scales", "1", "--lengths", "12", "--seeds", "3"]
    assert command.main([*more, *output]) == 0
    assert "medians of 2 to 3 seeds " in capsys.readouterr().out
    assert saved(tmp_path)["points"][: len(tiny["points"])] == tiny["points"]
    new = measured(saved(tmp_path))[len(tiny["points"]) :]
    assert new == [*(("features", 16, n) for n in range(3)), ("scale", 1, 2), ("length", 12, 2)]

    assert command.main([*TINY, "--scale", "0.5", *output]) == 2
    assert capsys.readouterr().err == (
        f"error: {file} holds measurements of other settings; --fresh forgets them, "
        "--output FOLDER keeps both:\n  scale: saved 0.25, now 0.5\n"
    )
    file.write_text(changed(tiny, machine=tiny["machine"] | {"cpu": "Some CPU"}))
    assert command.main([*TINY, *output]) == 2
    assert f"{file} holds measurements of Some CPU, " in capsys.readouterr().err
    assert command.main([*TINY, *output, "--fresh"]) == 0
    assert saved(tmp_path) == tiny


def test_a_fresh_run_that_is_stopped_continues_without_forgetting(tiny, tmp_path, monkeypatch):
    (tmp_path / "approximation.json").write_text(json.dumps(tiny))
    stop_after(1, monkeypatch)
    assert command.main([*TINY, "--fresh", "--output", str(tmp_path)]) == 130
    assert saved(tmp_path)["points"] == tiny["points"][:1]
