"""How commands of the benchmarks end."""

import sys

import pytest

from benchmarks.command import command, parser_of
from benchmarks.saved import Refused


def raising(error):
    @command
    def main(arguments=None):
        if error is not None:
            raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (None, 0, ""),
        (Refused("no such thing"), 2, "error: no such thing\n"),
        (OSError("disk full"), 2, "error: disk full\n"),
        (KeyboardInterrupt(), 130, "stopped; the same command continues\n"),
    ],
)
def test_a_command_ends_with_its_code_and_one_line(capsys, error, code, told):
    assert raising(error)([]) == code
    assert capsys.readouterr().err == told


def test_what_continues_after_fresh_was_given(capsys, monkeypatch):
    raising(KeyboardInterrupt())(["--fresh"])
    monkeypatch.setattr(sys, "argv", ["command", "--fresh"])
    raising(KeyboardInterrupt())()
    told = "stopped; the same command without --fresh continues\n"
    assert capsys.readouterr().err == 2 * told


def test_faults_of_the_program_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError())([])


def test_options_are_not_abbreviated(capsys):
    parser = parser_of("benchmarks.x", "What it does.")
    parser.add_argument("--fresh", action="store_true")
    with pytest.raises(SystemExit):
        parser.parse_args(["--fre"])
    assert "python -m benchmarks.x: error" in capsys.readouterr().err
