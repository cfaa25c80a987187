"""The loader's benchmark, and what opening 100 billion tokens takes."""

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from rich.console import Console

from benchmarks import loader, loader_report
from benchmarks.loader_draw import draw
from benchmarks.loader_results import CONFIGURATIONS, Results
from benchmarks.loader_set import write_sparse_set
from benchmarks.saved import Refused, read_results
from conf.cli import CONF
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
    tracemalloc.start()
    buckets = last.length_buckets(len(last), [4096, 32768])
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()
    assert sum(buckets.sizes) == len(last)
    # In a process of its own: memory that this one freed before would not be counted.
    arguments = ["by_length", "4096", "16", "1", "0", folder]
    command = [sys.executable, "-m", "benchmarks.loader_draw", *arguments]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert found["first_batch_seconds"] < 1
    assert found["anonymous_mb"] < 50


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("sets")
    write_sparse_set(place / "set", 3_000_000, 1000)
    write_sparse_set(place / "other", 300_000, 1000, seed=1)
    return [place / "set", place / "other"]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_every_configuration_is_drawn(folders, configuration, workers):
    found = draw(configuration, 64, 4, workers, 0, folders)
    assert 0 < found["first_batch_seconds"] < 60
    assert found["tokens_per_second"] > 0
    assert found["tokens_per_cpu_second"] > 0
    assert found["anonymous_mb"] < 50


def measured(configuration, workers, seconds, options, folders):
    """Stands for a process of its own."""
    stored = bool(list(folders[0].glob("lengths-*.bin")))
    assert stored or configuration != "by_length"
    assert not stored or configuration != "by_length_first"
    if configuration.startswith("by_length"):
        (folders[0] / "lengths-0.bin").touch()
    return {
        "first_batch_seconds": 1.5 if configuration == "by_length_first" else 0.2,
        "tokens_per_second": 4e6 + 1e6 * workers,
        "tokens_per_cpu_second": 5e6,
        "anonymous_mb": 30.0,
    }


def test_the_command_saves_continues_and_shows(tmp_path, capsys):
    output = ["--output", str(tmp_path), "--configurations", "plain"]
    assert loader.main([*SMALL, *output, "--workers", "0"]) == 0
    assert "20 times what training consumes" in capsys.readouterr().out
    file = tmp_path / "loader.json"
    points = json.loads(file.read_text())["points"]
    assert [point["configuration"] for point in points] == ["plain"]
    assert loader.main([*SMALL, *output, "--workers", "0"]) == 0  # nothing is left
    assert json.loads(file.read_text())["points"] == points
    assert [path.name for path in tmp_path.iterdir()] == ["loader.json"]
    assert loader.main(["--read", str(file), *output[:2]]) == 0
    capsys.readouterr()
    other = [*SMALL, *output, "--seq-len", "32"]
    assert loader.main(other) == 2
    assert "settings" in capsys.readouterr().err


def test_buckets_are_stored_before_they_are_read_wherever_a_measurement_continues(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(loader, "_drawn", measured)
    output = ["--output", str(tmp_path), "--workers", "2", "0"]
    assert loader.main([*SMALL, *output, "--configurations", "by_length"]) == 0
    assert loader.main([*SMALL, *output]) == 0
    points = json.loads((tmp_path / "loader.json").read_text())["points"]
    done = [(point["configuration"], point["workers"]) for point in points]
    assert done[:2] == [("by_length", 0), ("by_length", 2)]
    assert sorted(done) == sorted((name, n) for name in CONFIGURATIONS for n in (0, 2))


def results(**changes):
    """Of two points, the last with these changes."""
    point = {
        "configuration": "plain",
        "workers": 0,
        "first_batch_seconds": 0.5,
        "tokens_per_second": 4e6,
        "tokens_per_cpu_second": 5e6,
        "anonymous_mb": 40.0,
        "load": 0.0,
    }
    found = {
        "machine": {
            "cpu": "some",
            "cores": 2,
            "threads": 1,
            "torch": "2",
            "python": "3",
            "revision": "0",
        },
        "settings": {
            "tokens": 10**11,
            "document_tokens": 1000,
            "seq_len": 4096,
            "rows": 128,
            "seconds": 5,
        },
        "points": [point, point | changes],
    }
    Results.model_validate(found, strict=True)
    return found


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"first_batch_seconds": 1.0}, [0]),
        ({"first_batch_seconds": 9.0, "configuration": "by_length_first"}, []),
        ({"anonymous_mb": 50.0}, [1]),
        ({"tokens_per_second": 3.6e6}, [2]),
    ],
)
def test_a_target_is_missed_where_one_point_misses_it(changes, missed):
    found = loader_report.verdicts(results(**changes))
    assert [number for number, (holds, _) in enumerate(found) if not holds] == missed


def test_training_consumes_what_the_arithmetic_says():
    """6 N of 333 million parameters, and 0.19e9 operations of attention over 4,096 tokens."""
    total, dense = loader_report.operations(4096)
    assert dense == 6 * 332_904_960
    assert total - dense == pytest.approx(0.186e9, rel=0.01)
    assert loader_report.consumed(4096) == pytest.approx(0.4 * 989.4e12 / total)


def test_others_on_the_machine_are_told(capsys):
    loader_report.show(results(load=3.0), Console(width=120))
    assert "note: others used the machine (load before the command 3.0)" in " ".join(
        capsys.readouterr().out.split()
    )
    loader_report.show(results(), Console(width=120))
    assert "note" not in capsys.readouterr().out


def test_results_are_published_between_the_lines_of_the_document(tmp_path):
    document = tmp_path / loader_report.DOCUMENT
    file = tmp_path / loader_report.RESULTS
    document.parent.mkdir()
    file.parent.mkdir(parents=True)
    document.write_text("no lines\n")
    with pytest.raises(Refused, match="it has no lines <!-- written by"):
        loader_report.save(results(), tmp_path)
    assert not file.exists()
    begin, end = loader_report._BEGIN, loader_report._END
    document.write_text(f"before\n{begin}old\n{end}after\n")
    for found in (results(), results(load=2.0)):
        loader_report.save(found, tmp_path)
        assert read_results(file, Results) == found
        assert document.read_text() == (
            f"before\n{begin}{loader_report.section(found)}{end}after\n"
        )
    assert "| one data set | 0 | 0.50 | 40 | 4.0 | 22 | 5.0 | 2.0 |" in document.read_text()


def test_what_is_published_is_what_the_document_says():
    published = read_results(CONF.parent / loader_report.RESULTS, Results)
    document = (CONF.parent / loader_report.DOCUMENT).read_text()
    assert loader_report._BEGIN + loader_report.section(published) in document


def test_mistakes_are_refused(tmp_path, capsys):
    (tmp_path / "other.json").write_text("{}")
    assert loader.main(["--read", str(tmp_path / "other.json"), "--output", str(tmp_path)]) == 2
    assert "not written by this command" in capsys.readouterr().err
    for wrong, message in (
        (["--read", "x", "--rows", "4", "--fresh"], "leave out --rows --fresh"),
        (["--save", "--seq-len", "64"], "leave out --seq-len"),
        (["--tokens", "640", "--seq-len", "64"], "give more than ten rows"),
        (["--seq-len", "66"], "give 4 N"),
        (["--configurations", "other"], "invalid choice"),
    ):
        with pytest.raises(SystemExit):
            loader.main(wrong)
        assert message in capsys.readouterr().err


def test_a_sparse_set_is_one_that_is_read(tmp_path):
    index = write_sparse_set(tmp_path / "set", 5000, 70)
    assert read_index(tmp_path / "set") == index
    assert index.train.documents == 72


def test_documents_of_a_sparse_set_have_many_lengths(tmp_path):
    index = write_sparse_set(tmp_path / "set", 10**8, 1000)
    starts = np.load(tmp_path / "set" / index.train.offsets_file)
    assert starts[0] == 0
    sizes = np.diff(starts, append=10**8)
    assert sizes.min() >= 0
    assert sizes.mean() == 1000
    assert np.median(sizes) == pytest.approx(500, rel=0.05)
    assert 600 < (sizes > 8000).sum() < 1400
