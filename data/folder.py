"""Folders that appear complete or not at all."""

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".partial-"


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path | None]:
    """Gives an empty temporary folder next to `folder` that takes its name when the block ends
    well.

    Gives None if another process completed `folder` while this one waited for it. The temporary
    folder is locked; those of killed processes, which are not, are removed. If the block fails,
    nothing stays.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f"{_PREFIX}{folder.name}"
    with _locked(temporary):
        if folder.exists():
            temporary.rmdir()
            yield None
            return
        _remove_stale(temporary)
        try:
            _clear(temporary)
            yield temporary
            _sync_folder(temporary)
            temporary.rename(folder)
            _sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


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


def _remove_stale(own: Path) -> None:
    for other in own.parent.glob(f"{_PREFIX}*"):
        if other == own:
            continue
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            descriptor = os.open(other, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other)
            finally:
                os.close(descriptor)


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
