"""Small settings and helpers of the tests that run whole commands; the fixtures are in conftest."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import data.inspect as inspect_command
from model.training.metrics_file import is_validation, read

SMALL = [
    "logger=none",
    "logger.log_every=1",
    "tokenizer.vocab_size=288",
    "data.seq_len=32",
    "data.validation_bytes=2000",
    "model.layers=gla retnet softmax",
    "model.d_model=16",
    "model.ffn_dim=24",
    "model.mixers.gla.heads=2",
    "model.mixers.gla.conv_width=4",
    "model.mixers.retnet.heads=2",
    "model.mixers.softmax.heads=2",
    "model.mixers.softmax.kv_heads=1",
    "trainer.batch_tokens=128",
    "trainer.micro_batch_rows=3",
    "trainer.tokens=2560",
    "trainer.minutes=null",
    "trainer.precision=32-true",
    "trainer.validate_every=7",
    "trainer.validation_rows=2",
    "trainer.validation_batches=3",
    "trainer.checkpoint_every=5",
    "trainer.sample_tokens=4",
    "trainer.plots=false",
]
"""Overrides of train.py: a run of 20 steps in about a second."""


def small_run(text: Path, root: Path) -> list[str]:
    """Overrides of train.py: `SMALL`, on the documents in `text`, with runs kept in `root`."""
    return [*SMALL, f"data.root={text}/prepared", f"data.files={text}/*.jsonl", f"run.root={root}"]


def losses(run: Path, *more: str) -> dict[int, tuple[float, ...]]:
    """Loss, and more columns of metrics.jsonl, by optimizer step."""
    rows = [row for row in read(run / "metrics.jsonl") if not is_validation(row)]
    found = {row["step"]: tuple(row[key] for key in ("loss", *more)) for row in rows}
    assert len(found) == len(rows), "a step appears twice"
    return found


def called(main: Callable[[], None], *overrides: str) -> tuple[int, str, str]:
    """Runs a command in this process; returns (exit code, standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["command", *overrides])
        try:
            main()
            code = 0
        except SystemExit as exit:
            code = exit.code
    return code, out.getvalue(), err.getvalue()


def inspected(*overrides: str) -> list[dict[str, Any]]:
    """The rows that `python -m data.inspect` prints."""
    code, out, err = called(inspect_command.main, *overrides, "format=json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]
