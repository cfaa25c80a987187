"""Fixtures of the tests that run whole commands; Triton kernels are interpreted in all tests."""

import json
import os
import sys
from pathlib import Path

# Read when triton is imported. Tests that compile kernels do so in processes of their own.
os.environ["TRITON_INTERPRET"] = "1"

import pytest

import train as train_command
from tests.commands import SMALL


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
def command(tmp_path, text, monkeypatch, capsys):
    """Runs a command in this process; returns (exit code, standard output, standard error)."""

    def run(main, *overrides, small=True):
        shared = [f"data.root={text}/prepared", f"data.files={text}/*.jsonl"]
        place = [f"run.root={tmp_path}"] if main is train_command.main else [f"root={tmp_path}"]
        settings = [*SMALL, *shared] if main is train_command.main and small else []
        monkeypatch.setattr(sys, "argv", ["command", *settings, *place, *overrides])
        try:
            main()
            code = 0
        except SystemExit as exit:
            code = exit.code
        out = capsys.readouterr()
        return code, out.out, out.err

    return run
