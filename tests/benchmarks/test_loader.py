"""The loader's benchmark, and what opening 100 billion tokens takes."""

import json
import subprocess
import sys

import pytest

from benchmarks import loader
from benchmarks.loader_set import write_sparse_set
from data.index import read_index
from data.packed import PackedSplit

SMALL = ["--tokens", "3000000", "--seq-len", "64", "--rows", "4", "--seconds", "1"]


def test_a_hundred_billion_tokens_are_opened_in_a_second_and_50_mb(tmp_path):
    """On sparse files; documents of 100,000 tokens, so that their starts take 8 MB."""
    folder = tmp_path / "set"
    write_sparse_set(folder, 10**11, 100_000)
    assert sum(file.stat().st_blocks for file in folder.iterdir()) * 512 < 20e6
    last = PackedSplit(folder, "train", 4096)
    row = last[len(last) - 1]
    assert row["segments"].tolist()[-1] >= 0
    arguments = [folder, "4096", "16", "1", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loader_draw", *arguments], stdout=subprocess.PIPE
    )
    found = json.loads(done.stdout)
    assert found["first_batch_seconds"] < 1
    assert found["anonymous_mb"] < 50


def test_the_command_saves_continues_and_shows(tmp_path, capsys):
    output = ["--output", str(tmp_path)]
    assert loader.main([*SMALL, *output, "--workers", "0"]) == 0
    assert "20 times the latter is" in capsys.readouterr().out
    file = tmp_path / "loader.json"
    points = json.loads(file.read_text())["points"]
    assert [point["by_length"] for point in points] == [False, True]
    assert loader.main([*SMALL, *output, "--workers", "0"]) == 0  # nothing is left
    assert json.loads(file.read_text())["points"] == points
    assert [path.name for path in tmp_path.iterdir()] == ["loader.json"]
    assert loader.main(["--read", str(file), *output]) == 0
    capsys.readouterr()
    other = [*SMALL, *output, "--seq-len", "32"]
    assert loader.main(other) == 2
    assert "settings" in capsys.readouterr().err


def test_mistakes_are_refused(tmp_path, capsys):
    (tmp_path / "other.json").write_text("{}")
    assert loader.main(["--read", str(tmp_path / "other.json"), "--output", str(tmp_path)]) == 2
    assert "not written by this command" in capsys.readouterr().err
    for wrong in (["--read", "x", "--rows", "4"], ["--tokens", "64", "--seq-len", "64"]):
        with pytest.raises(SystemExit):
            loader.main(wrong)


def test_a_sparse_set_is_one_that_is_read(tmp_path):
    index = write_sparse_set(tmp_path / "set", 5000, 70)
    assert read_index(tmp_path / "set") == index
    assert index.train.documents == 72
