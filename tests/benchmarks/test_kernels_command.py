"""python -m benchmarks.kernels, as far as it goes without a GPU."""

import json
import subprocess
import sys

import pytest
import torch
from results import results

from benchmarks import kernels as command


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_one_sentence_says_so_and_what_works_instead(no_gpu, capsys, tmp_path):
    assert command.main(["--quick", "--output", str(tmp_path / "new")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: this benchmark times GPU kernels, and PyTorch finds no GPU here")
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_the_interpreter_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert command.refusal().startswith("TRITON_INTERPRET is set")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert command.refusal() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "--ops", "gla"], "--quick fixes what --ops sets: leave out one of them"),
        (["--quick", "--minutes", "9", "--widths", "64"], "fixes what --widths --minutes sets"),
        (["--read", "nothing.json", "--quick"], "--read measures nothing: leave out --quick"),
        (["--lengths", "63"], "'63' is not a whole number from 64"),
        (["--lengths", "2k"], "'2k' is not a whole number from 64"),
        (["--minutes", "soon"], "'soon' is not a number of minutes >= 1, such as 8"),
        (["--minutes", "0.5"], "'0.5' is not a number of minutes >= 1, such as 8"),
        (["--widths", "96"], "invalid choice: 96"),
        (["--op", "gla"], "unrecognized arguments: --op gla"),
    ],
)
def test_mistakes_are_answered_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_earlier_numbers_are_shown_without_a_gpu(no_gpu, capsys, tmp_path):
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps(results()))
    assert command.main(["--read", str(path), "--output", str(tmp_path / "new")]) == 0
    assert "Targets (H200, bfloat16)" in capsys.readouterr().out
    assert (tmp_path / "new" / "kernels.png").exists()


def with_time(**changed) -> dict:
    return {"times": [results()["times"][0] | changed]}


WRONG = {
    "another_type": ({"memory": 3}, "memory: Input should be a valid list"),
    "no_repeats": (
        with_time(milliseconds=[]),
        "times.0.milliseconds: List should have at least 1 item",
    ),
    "no_number": (with_time(milliseconds=["3"]), "times.0.milliseconds.0: Input should be a valid"),
    "no_time": (with_time(milliseconds=[0.0]), "times.0.milliseconds.0: Input should be greater"),
    "unknown": (with_time(library="FA"), "times.0.library: Input should be 'Braid', 'FLA', "),
}


@pytest.mark.parametrize(("changed", "reason"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_result_is_refused(changed, reason, tmp_path, capsys):
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps(results() | changed))
    assert command.main(["--read", str(path), "--output", str(tmp_path / "new")]) == 2
    message = f"error: --read {path}: not written by this command: {reason}"
    assert capsys.readouterr().err.startswith(message)
    assert not (tmp_path / "new").exists()


def test_an_output_that_is_no_folder_is_refused_before_the_measurement(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(command, "refusal", lambda: None)
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("it measured"))
    file = tmp_path / "file"
    file.write_text("")
    assert command.main(["--quick", "--output", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --output {file}: File exists")


def test_a_picture_of_earlier_numbers_lies_beside_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kernels.json").write_text(json.dumps(results()))
    assert command.main(["--read", "old/kernels.json"]) == 0
    assert (tmp_path / "old" / "kernels.png").exists()
    assert not (tmp_path / "outputs").exists()


def test_a_run_leaves_every_repeat_with_hardware_and_versions(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "refusal", lambda: None)
    monkeypatch.setattr(command, "machine", lambda: results()["machine"])
    monkeypatch.setattr(command, "first_step", lambda *_: 12.5)
    measured = {name: results()[name] for name in ("times", "memory", "notes")}
    given = {}

    def measure(cases, fla, instruments, budget, progress):
        given.update(cases=cases, fla=fla, minutes=budget.seconds / 60)
        return measured

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setitem(sys.modules, "fla", None)
    choice = ["--ops", "retnet", "--lengths", "4096", "--widths", "64", "--minutes", "2"]
    assert command.main([*choice, "--output", str(tmp_path)]) == 0
    assert given["minutes"] == 2
    assert {(c.op, c.length, c.width) for c in given["cases"]} == {("retnet", 4096, 64)}
    saved = json.loads((tmp_path / "kernels.json").read_text())
    assert saved["times"] == measured["times"]
    assert saved["machine"]["gpu"] == "Some GPU"
    assert saved["first_steps"] == [{"library": "Braid", "op": "gla", "seconds": 12.5}]
    assert "FLA's columns are empty: flash-linear-attention is not installed" in saved["notes"][0]
    assert "numbers and picture" in capsys.readouterr().out


class Done:
    returncode, stdout, stderr = 0, "a warning\n7.25\n", ""


def test_the_first_step_is_timed_in_a_process_with_an_empty_cache(monkeypatch):
    given = {}

    def run(arguments, env, timeout, **options):
        given.update(env=env, timeout=timeout, arguments=arguments)
        return Done

    monkeypatch.setattr(subprocess, "run", run)
    assert command.first_step("Braid", "gla", 128, 60.0) == 7.25
    assert given["arguments"][1:] == ["-m", "benchmarks.first_step", "Braid", "gla", "128"]
    assert given["env"]["TRITON_CACHE_DIR"]
    assert given["timeout"] == 60.0


def test_a_first_step_that_fails_or_does_not_end_is_told(monkeypatch):
    class Failed(Done):
        returncode, stderr = 1, "Traceback\nRuntimeError: no memory\n"

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Failed)
    with pytest.raises(RuntimeError, match="RuntimeError: no memory"):
        command.first_step("FLA", "gla", 128, 60.0)

    def never(*_, **__):
        raise subprocess.TimeoutExpired("python", 60.0)

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(RuntimeError, match="not finished after 60 s"):
        command.first_step("FLA", "gla", 128, 60.0)
