"""Errors of the operating system, told in terms of the setting that the path came from."""

import errno
import fnmatch
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Every setting that holds a path or a glob, and what to type for another one.
_ADVICE = {
    "run.root": "one that can be written: run.root=FOLDER",
    "run.init_from": "one that can be read: run.init_from=RUN",
    "root": "one that can be read: root=FOLDER",
    "data.root": "one that can be written: data.root=FOLDER",
    "data.dir": "one that can be read: data.dir=FOLDER",
    "data.files": "those that can be read: data.files=FILES",
    "data.hub": "one that can be read: data.hub=NAME",
    "tokenizer.path": "one that can be read: tokenizer.path=FILE",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WITHOUT_A_NAME = (*_FULL, errno.EIO, errno.EROFS)


def explain(error: OSError, settings: Any) -> str:
    """One message: the setting, the path, the reason, what to type.

    Args:
        settings: the command's validated settings. Of those that hold paths, the ones that lead
            deepest towards the error's file are named; none when the path came from elsewhere.
    """
    reason = error.strerror or str(error)
    if error.filename is None:
        return reason
    path = os.fsdecode(error.filename)
    keys = _keys_of(path, settings)
    if not keys:
        return f"{path}: {reason}"
    given = " ".join(f"{key}={value}" for key, value in keys.items())
    advice = " and ".join(_ADVICE[key] for key in keys)
    way_out = f"Free space there, or give {advice}" if error.errno in _FULL else f"Give {advice}"
    return f"{given}: {path}: {reason}. {way_out}"


@contextmanager
def located(path: Path) -> Iterator[None]:
    """Names `path` in the errors of reading and writing it, which by themselves name no file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _WITHOUT_A_NAME:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _keys_of(path: str, settings: Any) -> dict[str, str]:
    """The path settings with the largest part in common with `path`, and their values."""
    depths: dict[str, int] = {}
    values: dict[str, str] = {}
    for key in _ADVICE:
        value = settings
        for part in key.split("."):
            value = getattr(value, part, None)
        for one in value if isinstance(value, list) else [value] if value is not None else []:
            depth = _common_depth(Path(os.path.abspath(path)), one)
            if depth > depths.get(key, 0):
                depths[key], values[key] = depth, one
    deepest = max(depths.values(), default=0)
    return {key: values[key] for key, depth in depths.items() if depth == deepest}


def _common_depth(path: Path, value: str) -> int:
    """Number of parts that `path` shares with a path or glob that leads to it or through it."""
    given = Path(os.path.abspath(os.path.expanduser(value)))
    if glob.has_magic(value) and fnmatch.fnmatch(str(path), str(given)):
        fixed = [part for part in given.parts if not glob.has_magic(part)]
        return len(fixed)
    shorter, longer = sorted((path, given), key=lambda one: len(one.parts))
    return len(shorter.parts) if longer.is_relative_to(shorter) else 0
