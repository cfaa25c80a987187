"""python -m benchmarks.recall: mistakes, a tiny run that continues, files of others."""

import json

import pytest

from benchmarks import recall as command
from benchmarks import recall_work
from benchmarks.recall_train import Setup
from benchmarks.saved import Refused
from tests.full_disk import files_end_at

TINY = [
    "--models",
    "softmax",
    "linear-16",
    "--rates",
    "0.01",
    "0.02",
    "--seeds",
    "2",
    "--jobs",
    "1",
]
TINY += ["--vocab-size", "12", "--length", "8", "--pairs", "1", "2", "--batch", "2"]
TINY += ["--steps", "1", "--test-rows", "2"]
FIRST = [("softmax", 0.01, 0), ("linear-16", 0.01, 0), ("softmax", 0.02, 0), ("linear-16", 0.02, 0)]


def saved(folder) -> dict:
    return json.loads((folder / "recall.json").read_text())


def trained(results: dict) -> list[tuple]:
    return [(t["model"], t["rate"], t["seed"]) for t in results["trainings"]]


def timeless(results: dict) -> dict:
    return results | {"trainings": [t | {"seconds": 0} for t in results["trainings"]]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> dict:
    """Results of a tiny run."""
    file = tmp_path_factory.mktemp("tiny") / "recall.json"
    options = command.parse(TINY)
    return command.run(file, command._setup(options), options)


@pytest.fixture
def undrawn(monkeypatch) -> None:
    monkeypatch.setattr(command, "draw", lambda results, path: None)


def stop_after(trainings: int, monkeypatch) -> None:
    """Ctrl-C during the next training."""
    made, train = [], recall_work.train

    def counted(*given):
        if len(made) == trainings:
            raise KeyboardInterrupt
        made.append(given)
        return train(*given)

    monkeypatch.setattr(recall_work, "train", counted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "gpt"], "invalid choice: 'gpt' (choose from 'softmax', 'window64', "),
        (["--models", "linear", "softmax"], None),  # two models, not one hybrid
        (["--rates", "fast"], "'fast' is not a number from 1e-6 to 1, such as 0.01"),
        (["--rates", "nan"], "'nan' is not a number from 1e-6 to 1"),
        (["--seeds", "0"], "'0' is not a whole number from 1 to 1000"),
        (["--pairs", "4.5"], "'4.5' is not a whole number from 1 to 2048"),
        (["--step", "3"], "unrecognized arguments: --step 3"),
        (["--quick", "--seeds", "2"], "--quick fixes what --seeds sets: leave out one of them"),
        (["--read", "x.json", "--jobs", "2"], "--read trains nothing: leave out --jobs"),
        (["--read", "x", "--vocab-size", "144", "--quick", "--fresh"], "--vocab-size --quick --fr"),
    ],
)
def test_mistakes_are_answered_before_any_work(arguments, message, capsys):
    if message is None:
        assert command.parse(arguments).models == ["linear", "softmax"]
        return
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pairs", "8", "40"], "length=128, pairs=40: "),
        (["--batch", "18"], "batch=18 rows cannot be shared equally by 4 numbers of pairs"),
        (["--vocab-size", "100"], "vocab_size=100, pairs=64: "),
    ],
)
def test_rows_that_cannot_be_made_are_refused_before_any_work(arguments, message, tmp_path, capsys):
    assert command.main([*arguments, "--output", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def changed(results: dict, **values) -> str:
    return json.dumps({**results, **values})


WRONG = {
    "no_object": (lambda r: "3", "Input should be a valid dictionary"),
    "nothing": (lambda r: changed(r, trainings=[]), "trainings: List should have at least 1 item"),
    "settings": (lambda r: changed(r, settings={}), "settings.vocab_size: Field required"),
    "no_model": (
        lambda r: changed(r, trainings=[r["trainings"][0] | {"model": "gpt"}]),
        "trainings.0.model: Input should be 'softmax', ",
    ),
    "no_accuracy": (
        lambda r: changed(
            r,
            trainings=[
                r["trainings"][0] | {"scores": [{"length": 8, "pairs": 1, "accuracy": 1.5}]}
            ],
        ),
        "trainings.0.scores.0.accuracy: Input should be less than or equal to 1",
    ),
    "other_scores": (
        lambda r: changed(
            r, trainings=[r["trainings"][0] | {"scores": r["trainings"][0]["scores"][1:]}]
        ),
        "Value error, softmax, rate 0.01, seed 0: scores are of rows [(8, 2), (16, 2), ",
    ),
    "twice": (
        lambda r: changed(r, trainings=2 * r["trainings"][:1]),
        "Value error, the training softmax, rate 0.01, seed 0 is there twice",
    ),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_result_is_neither_shown_nor_added_to(
    text, reason, tiny, tmp_path, capsys
):
    file = tmp_path / "recall.json"
    file.write_text(text(tiny))
    assert command.main(["--read", str(file), "--output", str(tmp_path / "new")]) == 2
    reason = f"{file}: not written by this command: {reason}"
    assert capsys.readouterr().err.startswith(f"error: --read {reason}")
    assert not (tmp_path / "new").exists()
    assert command.main([*TINY, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {reason}")
    assert error.endswith("; --fresh replaces it\n")


def test_a_run_leaves_every_training_and_is_shown_again(tmp_path, capsys):
    assert command.main([*TINY, "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    results = saved(tmp_path)
    assert results["machine"]["threads"] == 1
    assert results["settings"] == {
        "vocab_size": 12, "length": 8, "pairs": [1, 2], "batch": 2, "steps": 1, "test_rows": 2,
    }  # fmt: skip
    assert trained(results)[:4] == FIRST
    assert [(model, seed) for model, _, seed in trained(results)[4:]] == [("softmax", 1)]
    assert (tmp_path / "recall.png").read_bytes().startswith(b"\x89PNG")
    again = tmp_path / "again"
    assert command.main(["--read", str(tmp_path / "recall.json"), "--output", str(again)]) == 0
    assert capsys.readouterr().out == shown.replace(str(tmp_path), str(again))
    assert not (again / "recall.json").exists()


@pytest.mark.parametrize("first", [2, 4])
def test_a_run_stopped_in_any_training_continues_to_the_same_numbers(
    first, tiny, undrawn, tmp_path, monkeypatch, capsys
):
    output = ["--output", str(tmp_path)]
    with monkeypatch.context() as patched:
        stop_after(first, patched)
        assert command.main([*TINY, *output]) == 130
    assert capsys.readouterr().err == "stopped; the same command continues\n"
    assert trained(saved(tmp_path)) == FIRST[:first]
    with monkeypatch.context() as patched:
        stop_after(len(tiny["trainings"]) - first, patched)
        assert command.main([*TINY, *output]) == 0
    assert timeless(saved(tmp_path)) == timeless(tiny)


def test_other_trainings_are_added_and_other_settings_refused(tiny, undrawn, tmp_path, capsys):
    file, output = tmp_path / "recall.json", ["--output", str(tmp_path)]
    file.write_text(json.dumps(tiny))
    assert command.main([*TINY, "--models", "gla", "--rates", "0.01", "--seeds", "1", *output]) == 0
    assert saved(tmp_path)["trainings"][:-1] == tiny["trainings"]
    assert trained(saved(tmp_path))[-1] == ("gla", 0.01, 0)
    capsys.readouterr()
    assert command.main([*TINY, "--steps", "2", *output]) == 2
    assert capsys.readouterr().err == (
        f"error: {file} holds measurements of other settings; --fresh forgets them, "
        "--output FOLDER keeps both:\n  steps: saved 1, now 2\n"
    )
    assert command.main([*TINY, *output, "--fresh"]) == 0
    assert timeless(saved(tmp_path)) == timeless(tiny)


def test_a_full_disk_ends_with_one_line_and_keeps_what_was_saved(tmp_path, capsys):
    with files_end_at(1400):
        assert command.main([*TINY, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: [Errno 27] File too large")
    assert error.count("\n") == 1
    assert trained(saved(tmp_path)) == FIRST[:2]


def test_processes_come_to_the_same_numbers(tiny):
    setup = Setup(**tiny["settings"])
    found = list(recall_work.train_all(setup, FIRST[:2], jobs=2))
    found.sort(key=lambda training: FIRST.index((training["model"], 0.01, 0)))
    expected = timeless(tiny)["trainings"][:2]
    assert [training | {"seconds": 0} for training in found] == expected


def test_a_process_that_dies_ends_with_one_error(tiny, monkeypatch):
    monkeypatch.setattr(recall_work, "train", recall_work.os._exit)
    with pytest.raises(Refused, match="a process that trained was killed"):
        list(recall_work.train_all(9, [()], jobs=2))


def test_quick_is_a_part_of_the_whole_run():
    quick, whole = command.parse(["--quick"]), command.parse([])
    assert set(quick.models) <= set(whole.models)
    assert set(quick.rates) <= set(whole.rates)
    assert command._setup(quick) == command._setup(whole)
