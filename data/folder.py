"""Folders that appear complete or not at all."""

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

_PREFIX = ".partial-"


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path | None]:
    """Gives a temporary folder next to `folder` that takes its name when the block ends well.

    Gives None if another process completed `folder` while this one waited for it. The temporary
    folder is locked meanwhile. A killed process leaves it as it is, for the next call with this
    `folder` to continue; a block that ends with ValueError, a user's mistake, leaves nothing.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f"{_PREFIX}{folder.name}"
    with _locked(temporary):
        if folder.exists():
            temporary.rmdir()
            yield None
            return
        for other in sorted(folder.parent.glob(f"{_PREFIX}*")):
            if other != temporary:
                print(
                    f"note: {other} belongs to a preparation that runs or was interrupted; the "
                    "same command continues it. Delete it if it is not wanted.",
                    file=sys.stderr,
                )
        try:
            yield temporary
        except ValueError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync_folder(temporary)
        temporary.rename(folder)
        _sync_folder(folder.parent)


def write_atomically(path: Path, contents: bytes) -> None:
    """Writes a file that is complete or not there at all, even after a crash."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(contents)
        sync(file)
    partial.rename(path)
    _sync_folder(path.parent)


def save_array(path: Path, array: np.ndarray) -> None:
    """Writes a .npy file and forces it to disk."""
    with path.open("wb") as file:
        np.save(file, array)
        sync(file)


def sync(file: BinaryIO) -> None:
    """Forces a file's contents to disk."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder and locks it, waiting for other processes. A killed process keeps no
    lock."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            _lock(folder, descriptor)
            if _is_open(folder, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _lock(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"note: waiting for another process that writes {folder}", file=sys.stderr)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise ValueError(
            f"{folder.parent} is on a file system without file locks ({error}). Write to a local "
            "disk and move the complete folder."
        ) from error


def _is_open(folder: Path, descriptor: int) -> bool:
    """Whether the folder is still the one that was opened: it may have been renamed or removed."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
