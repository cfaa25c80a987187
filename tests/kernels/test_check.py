"""The self-test of the kernels, interpreted: it passes for ours and fails for wrong ones."""

import os
import subprocess
import sys
from itertools import product

import pytest
import torch

import kernels.check
from kernels.check import Case, KernelError, cases, check, check_model_kernels
from kernels.problems import FAMILIES, can_normalize
from kernels.triton import gated_norm, ops


def test_cases_cover_every_family_type_and_packing() -> None:
    for full_size in (True, False):
        todo = [case for case in cases(full_size) if not case.decoding]
        assert {c.family for c in todo} == set(FAMILIES)
        for name in ("dtype", "gates", "normalize", "segments", "length", "strengths"):
            for family in (family for family in FAMILIES if not family.endswith("none")):
                seen = {getattr(c, name) for c in todo if c.family == family}
                possible = {getattr(c, name) for c in todo if c.gates != "zero"}
                assert seen == (
                    possible if can_normalize(family) or name != "normalize" else {False}
                )


def test_decoding_is_checked_in_every_family_and_type() -> None:
    todo = [case for case in cases(full_size=False) if case.decoding]
    assert {(c.family, c.dtype) for c in todo} == set(product(FAMILIES, kernels.check.BUDGETS))
    assert {c.length for c in todo} == {1, 13}
    assert {c.normalize for c in todo} == {True, False}
    assert all(check(case, "cpu").passed for case in todo[:4])


def test_a_wrong_kernel_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {("head", 16, 16, False)}
    monkeypatch.setattr(kernels.check, "GATES_AT_START", ("mild",))
    check_model_kernels(shapes, torch.bfloat16, "cpu")
    right = ops.forward

    def wrong_for_one_token(*arguments):
        o, *others = right(*arguments)
        o[:, 64] *= 1.5
        return o, *others

    monkeypatch.setattr(ops, "forward", wrong_for_one_token)
    with pytest.raises(KernelError, match="machine: family head, backend triton, widths 16"):
        check_model_kernels(shapes, torch.bfloat16, "cpu")


def test_a_wrong_kernel_of_a_layer_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = {("gated_norm", 16, 2, True), ("short_conv", 5, 4, False)}
    check_model_kernels(set(), torch.bfloat16, "cpu", layers)
    right = gated_norm.backward

    def wrong_for_one_gate(*arguments):
        d_o, d_weight, d_gate = right(*arguments)
        d_gate[0, 64, 3] = -9
        return d_o, d_weight, d_gate

    monkeypatch.setattr(gated_norm, "backward", wrong_for_one_gate)
    with pytest.raises(KernelError, match=r"gated_norm of 2 heads of 16 channels, swish.* d_gate"):
        check_model_kernels(set(), torch.bfloat16, "cpu", layers)


def test_not_a_number_is_not_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.check, "relative_error", lambda *arguments: float("nan"))
    case = Case("none", torch.float32, "zero", False, False, 3, 16, 16)
    assert not check(case, "cpu").passed


@pytest.mark.long
def test_the_command_interprets_where_there_is_no_gpu_and_prints_a_table() -> None:
    program = """
import itertools, sys, kernels.check as command
original, layers = command.cases, command.layer_results
command.cases = lambda full_size: iter(list(original(full_size))[:2])
command.layer_results = lambda *given: itertools.islice(layers(*given), 2)
sys.exit(command.main(["--device", "cpu"]))
"""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4 of 4 cases within" in done.stdout
    assert "interpreter on the CPU" in done.stdout


def test_the_command_fails_when_a_budget_is_missed(monkeypatch, capsys) -> None:
    two = list(cases(full_size=False))[:2]
    monkeypatch.setattr(kernels.check, "cases", lambda full_size: iter(two))
    monkeypatch.setattr(kernels.check, "layer_results", lambda *given: iter(()))
    monkeypatch.setitem(kernels.check.BUDGETS, torch.bfloat16, 1e-9)
    assert kernels.check.main(["--device", "cpu"]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_missing_gpu_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        kernels.check.main(["--device", "cuda"])
    assert "PyTorch finds no GPU here" in capsys.readouterr().err
