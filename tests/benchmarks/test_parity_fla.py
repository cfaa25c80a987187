"""The comparison with FLA's plain references, on references written to the same signatures."""

import sys

import pytest
import torch

from benchmarks import fla_ops, parity_fla
from benchmarks.parity_fla import Case, cases


@pytest.fixture
def shapes(monkeypatch):
    """One small shape per operator and form."""
    small = [
        Case("gla", 2, 20, 2, 8, 12, divisor=0.1),
        Case("gla", 1, 20, 2, 8, 8, borders=(0, 0, 7, 20)),
        Case("simple", 2, 20, 2, 8, 8, scale=0.1),
        Case("simple", 1, 20, 2, 8, 8, borders=(0, 7, 20)),
        Case("retnet", 2, 20, 2, 8, 16),
        Case("retnet", 1, 20, 2, 8, 8, borders=(0, 7, 20)),
        Case("linear", 2, 20, 2, 8, 8),
        Case("linear", 2, 20, 2, 8, 8, normalize=True),
        Case("deltanet", 2, 20, 2, 8, 8),
        Case("gated_deltanet", 1, 20, 2, 8, 8, scale=0.1, borders=(0, 7, 20)),
        Case("kda", 2, 20, 2, 8, 12, divisor=0.1),
    ]
    monkeypatch.setattr(parity_fla, "cases", lambda: small)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return small


def test_equal_references_pass_and_the_worst_error_is_printed(shapes, fake_fla, capsys):
    fake_fla()
    assert parity_fla.main([]) == 0
    out = capsys.readouterr().out
    assert "11 of 11 within 1e-03; 0 shapes left out" in out
    worst = float(out.split("torch: worst relative error ")[1].split()[0])
    assert 0 < worst < 1e-5


def test_a_reference_that_differs_fails_the_command(shapes, fake_fla, capsys):
    fake_fla(factor=1.01)
    assert parity_fla.main(["--op", "gla", "retnet"]) == 1
    out = capsys.readouterr().out
    assert out.count("MISSED") == 4
    assert "0 of 4 within 1e-03" in out


def test_16_bit_inputs_have_a_budget_of_their_own(shapes, fake_fla, capsys):
    fake_fla()
    assert parity_fla.main(["--dtype", "bfloat16", "--op", "simple"]) == 0
    assert "2 of 2 within 1e-02" in capsys.readouterr().out


def test_interpreted_triton_kernels_are_compared_too(shapes, fake_fla, capsys, monkeypatch):
    fake_fla()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(parity_fla, "cases", lambda: [shapes[5], shapes[8]])
    assert parity_fla.main([]) == 0
    out = capsys.readouterr().out
    assert "4 of 4 within 1e-03" in out
    assert "triton: worst relative error" in out
    assert parity_fla.main(["--backend", "triton"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 within 1e-03" in out
    assert "torch: worst" not in out
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert parity_fla.main(["--backend", "triton"]) == 2
    assert "finds no GPU here; set TRITON_INTERPRET=1" in capsys.readouterr().err


def test_shapes_above_the_limit_are_counted(shapes, fake_fla, capsys):
    fake_fla()
    assert parity_fla.main(["--op", "gla", "--most", "40"]) == 0
    assert "1 of 1 within 1e-03; 1 shapes left out" in capsys.readouterr().out


def test_a_limit_below_every_shape_is_a_mistake(shapes, fake_fla, capsys):
    fake_fla()
    assert parity_fla.main(["--op", "gla", "--most", "30"]) == 2
    assert capsys.readouterr().err == "error: --most 30: the smallest shape has 40\n"


def test_gradients_and_states_are_compared_where_the_reference_has_them(shapes, fake_fla):
    fake_fla()
    columns = {}
    for case in (shapes[0], shapes[4], shapes[7], *shapes[8:]):
        naive = fla_ops.naive_module(parity_fla.FOLDERS[case.op])
        columns[case.op] = set(parity_fla.errors(case, torch.float32, "torch", naive, "cpu"))
    assert columns["gla"] == set(parity_fla.COLUMNS) - {"d beta"}
    assert columns["retnet"] == {"out", "d q", "d k", "d v"}
    assert columns["linear"] == set(parity_fla.COLUMNS) - {"d decay", "d beta"}
    assert columns["deltanet"] == set(parity_fla.COLUMNS) - {"d decay"}
    assert columns["gated_deltanet"] == columns["kda"] == set(parity_fla.COLUMNS)


def test_without_fla_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fla", None)
    assert parity_fla.main([]) == 2
    err = capsys.readouterr().err
    assert err == (
        "error: flash-linear-attention is not installed: pip install flash-linear-attention\n"
    )


def test_the_shapes_cover_every_operator_small_first():
    found = cases()
    assert {case.op for case in found} == set(parity_fla.FOLDERS)
    assert found[0].size <= 4
    assert max(case.length for case in found) == 2048
    assert max(case.key_width for case in found) == 512
    assert any(case.borders == (0, 0, 16) for case in found)
    assert len(found) == len(set(found))
