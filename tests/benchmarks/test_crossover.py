"""python -m benchmarks.crossover: mistakes, a tiny run that continues, tables and pictures."""

import io
import json
import re

import matplotlib.pyplot as plt
import pytest
from rich.console import Console

from benchmarks import crossover as command
from benchmarks.crossover_picture import draw
from benchmarks.crossover_report import SOFTMAX, crossing_of, curve, show, summary
from benchmarks.crossover_results import Results
from benchmarks.saved import read_results
from conf.cli import CONF

TINY = ["--mixers", "linear", "kda", "--width", "16", "--head-dims", "8"]
TINY += ["--lengths", "4", "8", "--contexts", "4"]


def results() -> dict:
    """linear takes 640 n, retnet 3000 n and softmax n^2 microseconds, and all the same memory."""
    laws = {
        "linear": lambda n: 640 * n,
        "retnet": lambda n: 3000 * n,
        "softmax": lambda n: n**2,
    }
    points = [
        {
            "mixer": name, "head_dim": head_dim, "length": n, "part": part, "pass": way,
            "milliseconds": [law(n) / 1e3, law(n) / 1e2, law(n) / 1e4], "bytes": 1000 * n,
        }
        for name, law in laws.items()
        for head_dim in (32, 64)
        for n in (256, 1024, 4096)
        for part in ("whole", "core")
        for way in ("forward", "training", "decode")
    ]  # fmt: skip
    return {
        "machine": {
            "cpu": "Some CPU", "cores": 2, "threads": 2, "torch": "2.13", "python": "3.11",
            "revision": "abc",
        },
        "settings": {"width": 256, "mixers": list(laws)},
        "loads": [0.1, 3.5],
        "points": points,
        "notes": ["not measured, the time was over"],
    }  # fmt: skip


def test_crossovers_are_those_of_the_medians():
    assert crossing_of(results(), "linear", 32, "core", "forward").tokens == pytest.approx(640)
    assert crossing_of(results(), "retnet", 64, "whole", "decode").tokens == pytest.approx(3000)
    of_bytes = crossing_of(results(), "linear", 32, "whole", "training", "bytes")
    assert str(of_bytes) == "none to 4,096"


def test_the_common_claim_stands_beside_what_was_measured():
    first, *lines = summary(results())
    assert "2,000 to 8,000 tokens" in first
    assert lines == [f"d={d}: earlier: linear 640; as claimed: retnet 3,000" for d in (32, 64)]


def test_the_tables_show_lengths_ratios_hardware_and_notes():
    text = io.StringIO()
    show(results(), Console(file=text, width=200))
    shown = text.getvalue()
    lines = [line.split() for line in shown.replace("│", " ").splitlines()]
    crossings = "linear 640 (20.0 d) 640 (20.0 d) 640 (10.0 d) 640 (10.0 d)"
    assert lines.count(crossings.split()) == 3
    assert any(line[:3] == ["retnet", "12,288", "(0.732)"] for line in lines)
    assert "Some CPU, 2 threads on 2 cores; torch 2.13" in shown
    assert "before each start: 0.1, 3.5" in shown
    assert "not measured, the time was over" in shown


@pytest.fixture
def clock(monkeypatch):
    """Every call takes a millisecond, and is made once; no profiler, no pictures."""
    begun = []

    def milliseconds(call, count: int) -> float:
        begun.append(call())
        return 1.0

    monkeypatch.setattr(command, "cpu_milliseconds", milliseconds)
    monkeypatch.setattr(command, "cpu_peak_bytes", lambda call: len(call()))
    monkeypatch.setattr(command, "draw", lambda results, folder: [])
    monkeypatch.setattr("benchmarks.timing.MOST_REPEATS", 3)
    return begun


def test_a_run_leaves_every_repeat_and_the_next_one_adds_to_it(clock, tmp_path, capsys):
    output = ["--output", str(tmp_path)]
    assert command.main([*TINY, *output]) == 0
    assert "numbers and pictures" in capsys.readouterr().out
    saved = json.loads((tmp_path / "crossover.json").read_text())
    assert saved["settings"] == {"width": 16, "mixers": ["kda", "linear", "softmax"]}
    assert len(saved["points"]) == 3 * 2 * (2 * 2 + 1)
    assert all(point["bytes"] > 0 for point in saved["points"])
    assert len(saved["loads"]) == 1

    made = len(clock)
    assert command.main([*TINY, *output]) == 0
    assert len(clock) == made
    more = [*TINY, "--head-dims", "4", *output]
    assert command.main(more) == 0
    again = json.loads((tmp_path / "crossover.json").read_text())
    assert again["points"][: len(saved["points"])] == saved["points"]
    assert len(again["points"]) == 2 * len(saved["points"])


def test_measurements_of_another_machine_or_other_settings_are_not_mixed(clock, tmp_path, capsys):
    output = ["--output", str(tmp_path)]
    file = tmp_path / "crossover.json"
    file.write_text(json.dumps(results()))
    assert command.main([*TINY, *output]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file} holds measurements of Some CPU, 2 threads")
    assert "--fresh forgets them, --output FOLDER keeps both" in error
    here = command.cpu_machine()
    file.write_text(json.dumps({**results(), "machine": here}))
    assert command.main([*TINY, *output]) == 2
    error = capsys.readouterr().err
    assert "other settings; --fresh forgets them, --output FOLDER keeps both:" in error
    assert "\n  width: saved 256, now 16\n  mixers: saved ['linear', 'retnet'" in error
    assert command.main([*TINY, *output, "--fresh"]) == 0


def with_point(**changed) -> dict:
    return {"points": [results()["points"][0] | changed]}


WRONG = {
    "a_number": ({"points": 4}, "points: Input should be a valid list"),
    "nothing": ({"points": []}, "points: List should have at least 1 item"),
    "empty": ({"points": [{}]}, "points.0.mixer: Field required"),
    "no_repeats": (with_point(milliseconds=[]), "points.0.milliseconds: List should have at least"),
    "no_time": (with_point(milliseconds=[0]), "points.0.milliseconds.0: Input should be greater"),
    "unknown": (with_point(mixer="gated"), "points.0.mixer: Input should be "),
    "no_pass": (with_point(**{"pass": 3}), "points.0.pass: Input should be 'forward', 'training'"),
    "no_machine": ({"machine": {}}, "machine.cpu: Field required"),
    "no_settings": ({"settings": {}}, "settings.width: Field required"),
}


@pytest.mark.parametrize(("changed", "reason"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_result_is_neither_shown_nor_added_to(changed, reason, tmp_path, capsys):
    file = tmp_path / "crossover.json"
    file.write_text(json.dumps(results() | changed))
    assert command.main(["--read", str(file), "--output", str(tmp_path / "new")]) == 2
    reason = f"{file}: not written by this command: {reason}"
    assert capsys.readouterr().err.startswith(f"error: --read {reason}")
    assert not (tmp_path / "new").exists()
    assert command.main([*TINY, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {reason}")
    assert error.endswith("; --fresh replaces it\n")


def test_an_interrupted_run_says_how_to_continue(clock, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "cpu_milliseconds", interrupt)
    assert command.main([*TINY, "--output", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "stopped; the same command continues\n"


def test_earlier_numbers_are_shown_and_drawn_again(tmp_path, capsys):
    file = tmp_path / "crossover.json"
    of_64 = {**results(), "points": [p for p in results()["points"] if p["head_dim"] == 64]}
    file.write_text(json.dumps(of_64))
    assert command.main(["--read", str(file), "--output", str(tmp_path / "new")]) == 0
    assert "3,000 (46.9 d)" in capsys.readouterr().out
    for name in ("time-d64.png", "crossover.png"):
        assert (tmp_path / "new" / name).read_bytes().startswith(b"\x89PNG")


def test_the_curves_mark_where_they_cross(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.crossover_picture._save", lambda figure, path: figure)
    of_32 = {**results(), "points": [p for p in results()["points"] if p["head_dim"] == 32]}
    figure, _ = draw(of_32, tmp_path)
    panel = figure.axes[0]
    lines = {line.get_label(): line for line in panel.get_lines()}
    assert list(lines["linear"].get_xdata()) == [256, 1024, 4096]
    assert panel.get_xscale() == panel.get_yscale() == "log"
    dots = [line for line in panel.get_lines() if len(line.get_xdata()) == 1]
    at = [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots]
    assert at == [pytest.approx((n, n**2 / 1e3)) for n in (640, 3000)]
    plt.close("all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "--lengths", "8"], "--quick fixes what --lengths sets: leave out one of them"),
        (["--quick", "--read", "x"], "--read measures nothing: leave out --quick"),
        (["--read", "x", "--width", "64"], "--read measures nothing: leave out --width"),
        (["--lengths", "2k"], "'2k' is not a whole number from 1"),
        (["--mixers", "gated"], "invalid choice: 'gated'"),
        (["--minutes", "0"], "'0' is not a number of minutes >= 0.1, such as 5"),
        (["--head-dim", "64"], "unrecognized arguments: --head-dim 64"),
    ],
)
def test_mistakes_are_answered_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head-dims", "48"], "--head-dims 48 does not divide --width 256 into heads"),
        (["--width", "6", "--head-dims", "2"], "gated_deltanet with --head-dims 2: expand_k=0.75"),
    ],
)
def test_widths_that_do_not_fit_are_refused_before_any_work(arguments, message, tmp_path, capsys):
    assert command.main([*arguments, "--output", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_the_published_crossovers_and_memory_are_those_of_the_raw_numbers():
    results = read_results(CONF.parent / "benchmarks/results/crossover.json", Results)
    text = (CONF.parent / "docs/mixers.md").read_text()
    for mixer in results["settings"]["mixers"]:
        if mixer == SOFTMAX:
            continue
        cells = [
            str(crossing_of(results, mixer, d, "whole", way)).replace("none to", "beyond")
            for way in ("training", "decode")
            for d in (32, 64, 128)
        ]
        training, decode = " | ".join(cells[:3]), " | ".join(cells[3:])
        pattern = rf"\| `{mixer}` \| {training} \| [0-9.]+ \| {decode} \|"
        assert re.search(pattern, text), mixer
        mebibytes = curve(results, mixer, 64, "whole", "training", "bytes")[4096] / 2**20
        assert re.search(rf"\| `{mixer}`[^|]* \| {mebibytes:.0f} \|", text), mixer
