"""One training step in a process of its own; here in this one, tiny, on the CPU."""

import pytest
import torch

from benchmarks import first_step, fla_ops
from benchmarks.kernel_cases import Case


@pytest.mark.parametrize("library", ["Braid", "FLA"])
def test_the_seconds_of_one_training_step_are_printed(library, monkeypatch, capsys):
    synchronised, calls = [], []

    def gla(q, k, v, g):
        calls.append(q.shape)
        return q * k * v * g, None

    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: synchronised.append(True))
    monkeypatch.setattr(fla_ops, "chunked_ops", lambda: {"gla": gla})
    monkeypatch.setattr(first_step, "case", lambda *_: Case("gla", 1, 32, 1, 16))
    first_step.main([library, "gla", "16"], device="cpu", backend="torch")
    assert float(capsys.readouterr().out) > 0
    assert len(synchronised) == 2
    assert len(calls) == (library == "FLA")
