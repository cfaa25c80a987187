"""What a benchmark leaves in its output folder, and reads again or adds to.

Every command describes its file by a pydantic schema; nothing else is read into a report.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from benchmarks.machine import describe
from model.training.differences import changed

Count = Annotated[int, Field(gt=0, lt=2**63)]
Milliseconds = Annotated[float, Field(ge=1e-9, le=1e12)]  # a picosecond to thirty years


class Refused(Exception):
    """A command cannot do what was asked; the message says why."""


class CpuMachine(BaseModel):
    """What `benchmarks.machine.cpu_machine` returns."""

    cpu: str
    cores: Count
    threads: Count
    torch: str
    python: str
    revision: str


def read_results(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    """The object in `path`, which is what `--read` was given; keys outside of `schema` stay in it.

    Raises:
        Refused: there is no such file, or something else in it.
    """
    try:
        return _read(path, schema)
    except OSError as error:
        raise Refused(
            f"--read {path}: {error.strerror}; give a file that this command left"
        ) from error
    except Refused as error:
        raise Refused(f"--read {error}") from error


def start_or_continue(
    file: Path, schema: type[BaseModel], nothing: dict[str, Any], fresh: bool
) -> dict[str, Any]:
    """What `file` holds already, if it was measured on this machine with the same settings.

    Args:
        nothing: what a new file starts with. Its "machine" and "settings" must be the file's, too;
            "settings" are what all measurements share, not which of them are wanted.
        fresh: forget what was measured before.

    Raises:
        Refused: it was measured elsewhere or otherwise, or is another kind of file.
        OSError: it cannot be read.
    """
    if fresh or not file.exists():
        return nothing
    try:
        results = _read(file, schema)
    except Refused as error:
        raise Refused(f"{error}; --fresh replaces it") from error
    way_out = "--fresh forgets them, --output FOLDER keeps both"
    if results["machine"] != nothing["machine"]:
        raise Refused(
            f"{file} holds measurements of {describe(results['machine'])}, and this is "
            f"{describe(nothing['machine'])}: {way_out}"
        )
    differences = changed(results["settings"], nothing["settings"])
    if differences:
        lines = "".join(f"\n  {key}: saved {old!r}, now {new!r}" for key, old, new in differences)
        raise Refused(f"{file} holds measurements of other settings; {way_out}:{lines}")
    return results


def make_folder(path: Path) -> None:
    """Creates the output folder, before any work.

    Raises:
        Refused: it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"--output {path}: {error.strerror}; give another folder") from error


def _read(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: not written by this command: no JSON ({error})") from error
    try:
        schema.model_validate(results, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise Refused(f"{path}: not written by this command: {reason}") from error
    return results
