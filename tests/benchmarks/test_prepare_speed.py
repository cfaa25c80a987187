"""python -m benchmarks.prepare: a tiny run that continues, mistakes, and a larger run's memory."""

import json

import pytest

from benchmarks import prepare as command
from benchmarks.prepare_corpus import some_text, write_corpus

TINY = ["--megabytes", "2", "--longest", "1", "--vocab-size", "1000", "--processes", "1"]


@pytest.fixture(scope="module", params=["sentencepiece", "hf_json"])
def tiny(request, tmp_path_factory):
    """The folder of a tiny run with a tokenizer of each kind, its results and its options."""
    options = [*TINY, "--kind", request.param]
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_BARE_SECONDS", 0.0)
        patch.setattr(command, "_SAMPLE", 200_000)
        patch.setattr(command, "_UNSPLIT", 200_000)
        return folder, command.run(folder / "prepare.json", command.parse(options)), options


def test_a_run_measures_every_preparation_and_leaves_nothing_else(tiny):
    folder, results, _ = tiny
    (point,) = results["points"]
    assert point["processes"] == 1
    assert point["bytes"] == pytest.approx(2e6, rel=0.02)
    assert 1 < point["bytes"] / point["tokens"] < 8
    assert len(point["bare"]) == 2
    assert results["unsplit"]["equal"] is True
    assert json.loads((folder / "prepare.json").read_text()) == results
    assert [entry.name for entry in folder.iterdir()] == ["prepare.json"]


def test_the_same_command_measures_nothing_twice_and_shows_the_verdicts(tiny, capsys, monkeypatch):
    folder, results, options = tiny
    monkeypatch.setattr(command, "_measured", lambda *given: pytest.fail("measured again"))
    assert command.main([*options, "--output", str(folder)]) == 0
    shown = capsys.readouterr().out
    (point,) = results["points"]
    ratio = point["bytes"] / point["cpu_seconds"] / max(point["bare"])
    assert f"{ratio:.2f}" in shown
    assert ("yes" if ratio >= 0.7 else "NO ") + "  speed per core is at least 0.7" in shown
    assert "yes  every process stays below 2 GB" in shown
    assert "yes  a document of " in shown
    read = ["--read", str(folder / "prepare.json"), "--output", str(folder)]
    assert command.main(read) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--megabytes", "0"], "'0' is not a whole number from 1 to 1000000"),
        (["--vocab-size", "100"], "'100' is not a whole number from 512 to 1048576"),
        (["--megabytes", "8"], "--longest 8: the longest document is part of --megabytes 8"),
        (["--read", "x", "--processes", "2"], "--read measures nothing: leave out --processes"),
    ],
)
def test_mistakes_are_answered_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_files_of_others_are_refused(tiny, tmp_path, capsys):
    _, results, options = tiny
    wrong = {"bare": [1.0]}
    file = tmp_path / "prepare.json"
    file.write_text(json.dumps(results | {"points": [results["points"][0] | wrong]}))
    assert command.main(["--read", str(file)]) == 2
    assert "not written by this command: points.0.bare: List should" in capsys.readouterr().err
    file.write_text(json.dumps(results))
    assert command.main([*options[2:], "--megabytes", "3", "--output", str(tmp_path)]) == 2
    assert "megabytes: saved 2, now 3" in capsys.readouterr().err


def test_a_corpus_has_the_size_and_the_long_document_that_were_asked_for(tmp_path):
    write_corpus(tmp_path, 300_000, 100_000, seed=3)
    long = (tmp_path / "long.txt").read_text(encoding="utf-8")
    assert len(long) == 100_000
    assert long == some_text(100_000, seed=3)
    lines = (tmp_path / "short-000.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert 200_000 <= sum(map(len, texts)) < 260_000
    assert len(set(texts)) == len(texts)


@pytest.mark.long
def test_memory_and_speed_with_a_long_document(tmp_path):
    """The document alone has 30 MB; what a process takes over an empty Python does not grow."""
    arguments = ["--megabytes", "50", "--longest", "30", "--vocab-size", "4096"]
    options = command.parse([*arguments, "--processes", "2"])
    results = command.run(tmp_path / "prepare.json", options)
    (point,) = results["points"]
    assert point["bytes"] == pytest.approx(50e6, rel=0.02)
    assert point["peak_bytes"] < 200e6
    assert point["bytes"] / point["cpu_seconds"] >= 0.4 * max(point["bare"])  # with all starts
    assert results["unsplit"] == {"bytes": results["unsplit"]["bytes"], "equal": True}
