"""What a benchmark leaves in its output folder, and reads again."""

import json
from collections.abc import Collection
from pathlib import Path


class Refused(Exception):
    """A command cannot do what was asked; the message says why."""


def read_results(path: Path, fields: Collection[str]) -> dict:
    """The object in `path`, which has at least `fields`.

    Raises:
        Refused: there is no such file, or something else in it.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"--read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"--read {path}: not written by this command ({error})") from error
    missing = [name for name in fields if not isinstance(results, dict) or name not in results]
    if missing:
        raise Refused(f"--read {path}: not written by this command, lacks {', '.join(missing)}")
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
