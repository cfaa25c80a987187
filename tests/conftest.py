"""Fixtures of the tests that run whole commands; Triton kernels are interpreted in all tests."""

import json
import os
import shutil
import sys
from pathlib import Path

# Read when triton is imported. Tests that compile kernels do so in processes of their own.
os.environ["TRITON_INTERPRET"] = "1"

import pytest

import train as train_command
from tests.commands import called, small_run


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """Twenty small documents in JSON lines."""
    folder = tmp_path_factory.mktemp("text")
    rows = [
        {"text": "".join(f"item {i * j % 97} of list {i}\n" for j in range(40))} for i in range(20)
    ]
    (folder / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def command(tmp_path, text):
    """Runs a command in this process; returns (exit code, standard output, standard error)."""

    def run(main, *overrides, small=True):
        if main is not train_command.main:
            settings = [f"root={tmp_path}"]
        else:
            settings = small_run(text, tmp_path) if small else [f"run.root={tmp_path}"]
        return called(main, *settings, *overrides)

    return run


@pytest.fixture(scope="session")
def one_step_run(tmp_path_factory, text) -> Path:
    root = tmp_path_factory.mktemp("runs")
    settings = [*small_run(text, root), "run.name=run", "trainer.tokens=128"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", *settings])
        train_command.main()
    return root / "run"


@pytest.fixture
def trained(tmp_path, one_step_run):
    """Makes a copy, under a name of its own, of a run of one step (trainer.tokens=128)."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(one_step_run, tmp_path / name))

    return copy
