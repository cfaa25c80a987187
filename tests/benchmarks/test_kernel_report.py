"""Medians, ratios, verdicts, the tables and the picture."""

import io

import matplotlib.pyplot as plt
import pytest
from results import entry, results
from rich.console import Console

from benchmarks.kernel_report import draw, rows, show, targets


def find(op, length, direction, packed=False, width=128):
    wanted = (op, length, width, direction, packed)
    return next(
        r for r in rows(results()) if (r.op, r.length, r.width, r.direction, r.packed) == wanted
    )


def test_a_row_holds_medians_of_the_repeats():
    assert find("gla", 16384, "training").milliseconds == {
        "Braid": 4.0, "FLA": 8.0, "flash": 16.0, "cudnn": 8.0
    }  # fmt: skip


def test_softmax_attention_counts_with_its_fastest_form():
    row = find("gla", 16384, "training")
    assert row.softmax == "cudnn"
    assert row.ratio(row.softmax) == 0.5
    packed = find("gla", 16384, "training", packed=True)
    assert packed.ratio(packed.softmax) == 2.0
    assert packed.ratio("FLA") is None


def test_targets_are_computed_from_the_rows_they_name():
    found = [(t.measured, t.verdict) for t in targets(results())]
    # Softmax attention is fastest in comparison at the shortest length, 2048: 4 against 1 ms.
    assert found == [
        (0.5, "met"), (6.0, "MISSED"), (4.0, "MISSED"), (12.5, "met"), (0.25, "met")
    ]  # fmt: skip
    assert targets(results())[2].where == "gla T=2048 D=128"


def test_targets_that_were_not_measured_say_so():
    empty = {**results(), "times": [], "memory": [], "first_steps": []}
    assert {t.verdict for t in targets(empty)} == {"not measured"}


def test_lengths_below_2048_and_packed_rows_do_not_count_against_softmax_attention():
    short = [
        entry("gla", length, 128, library, "training", [ms], packed)
        for length, packed in ((1024, False), (4096, True))
        for library, ms in (("Braid", 9.0), ("flash", 1.0))
    ]
    assert targets({**results(), "times": short})[2].measured is None


def test_the_tables_show_ratios_verdicts_and_notes():
    text = io.StringIO()
    show(results(), Console(file=text, width=140))
    lines = [line.split() for line in text.getvalue().replace("│", " ").splitlines()]
    row = "gla 128 16384 2 16 training 4 8 0.5 8 cudnn 0.5"
    assert row.split() in lines
    assert ["retnet", "training", "100.0", "400.0", "0.25"] in lines
    assert "Some GPU; torch 2.13, triton 3.7" in text.getvalue()
    assert "MISSED" in text.getvalue()
    assert "note: cudnn, gla T=64 D=256: not timed, no available kernel" in text.getvalue()


def test_memory_of_nothing_has_no_ratio():
    nothing = [row | {"bytes": 0} for row in results()["memory"]]
    assert targets({**results(), "memory": nothing})[4].verdict == "not measured"


def test_a_name_of_hardware_is_no_markup():
    text = io.StringIO()
    machine = {"gpu": "GPU [/x]", "versions": {"torch": "2.13"}}
    show({**results(), "machine": machine}, Console(file=text, width=140))
    assert "GPU [/x]; torch 2.13" in text.getvalue()


def test_the_picture_has_a_panel_per_operator_with_time_a_token(tmp_path, monkeypatch):
    monkeypatch.setattr(plt, "close", lambda figure: None)
    path = tmp_path / "new" / "kernels.png"
    draw(results(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = plt.gcf().axes
    monkeypatch.undo()
    assert [panel.get_title() for panel in panels] == ["gla, D=128", "retnet, D=128"]
    lines = {line.get_label(): line for line in panels[0].get_lines()}
    assert set(lines) == {
        "Braid", "FLA", "softmax attention", "Braid, packed", "softmax attention, packed"
    }  # fmt: skip
    assert list(lines["Braid"].get_xdata()) == [2048, 16384, 65536]
    assert lines["Braid"].get_ydata()[0] == pytest.approx(4e6 / 32768)
    assert lines["Braid"].get_ydata()[2] == pytest.approx(4e6 / 65536)
    assert panels[0].get_xscale() == panels[0].get_yscale() == "log"
    plt.close("all")


def test_an_empty_run_still_has_tables_and_a_picture(tmp_path):
    empty = {**results(), "times": [], "memory": [], "first_steps": []}
    draw(empty, tmp_path / "kernels.png")
    show(empty, Console(file=io.StringIO()))
    assert (tmp_path / "kernels.png").exists()
