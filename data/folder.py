"""Folders that appear complete or not at all."""

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote
from typing import BinaryIO

import numpy as np

from conf.paths import located

LOCK_FILE = ".lock"
"""In the temporary folder; not to be removed by the block that fills it."""

_PREFIX = ".partial-"


@contextlib.contextmanager
def building(folder: Path, parts: int | None = None) -> Iterator[Path | None]:
    """Gives a temporary folder next to `folder` that takes its name when the block ends well.

    Gives None if another process completed `folder` while this one waited for it. The temporary
    folder is locked meanwhile. A killed process leaves it as it is, for the next call with this
    `folder` to continue; a block that ends with ValueError, a user's mistake, leaves nothing.

    parts: the temporary folder is that of so many `sharing` processes, for which this one waits. It
    is also left as it is at a ValueError.

    Raises:
        ValueError: one of the names is taken by a link that leads nowhere.
    """
    _check_link(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_folder(folder, parts)
    with _locked(temporary):
        if folder.exists():
            _remove(temporary)
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
            with located(temporary):
                yield temporary
        except ValueError:
            if parts is None:
                _remove(temporary)
            raise
        _sync_folder(temporary)
        temporary.rename(folder)
        (folder / LOCK_FILE).unlink()
        _sync_folder(folder.parent)


@contextlib.contextmanager
def sharing(folder: Path, parts: int) -> Iterator[Path | None]:
    """Gives the temporary folder that several processes fill before `building` completes it.

    Gives None if `folder` is complete.
    """
    _check_link(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_folder(folder, parts)
    with _locked(temporary, fcntl.LOCK_SH):
        if folder.exists():
            _remove(temporary)
            yield None
            return
        with located(temporary):
            yield temporary


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Of all processes with this block and lock file, one is in it; the others wait."""
    with path.open("ab") as file:
        _lock(path, file, fcntl.LOCK_EX)
        yield


def temporary_folder(folder: Path, parts: int | None = None) -> Path:
    """Where the contents of `folder` are until it is complete."""
    return folder.parent / f"{_PREFIX}{folder.name}{'' if parts is None else f'.of-{parts}'}"


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
    save_blocks(path, array.shape, array.dtype, [array])


def save_blocks(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]
) -> None:
    """Writes blocks of rows as one .npy file of this shape and forces it to disk."""
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)  # np.save would not say why it failed
        sync(file)


def sync(file: BinaryIO) -> None:
    """Forces a file's contents to disk."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def _locked(folder: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Makes the folder and locks it, waiting for other processes. A killed process keeps no lock.

    The lock is a file opened for writing: over NFS, directories are locked for one machine only.
    """
    while True:
        with contextlib.suppress(FileExistsError):  # exist_ok minds a folder that has just gone
            folder.mkdir()
        try:
            file = (folder / LOCK_FILE).open("a+b")  # NFS: shared locks need reading
        except FileNotFoundError:  # another process ended and removed or renamed the folder
            _check_link(folder)
            _check_link(folder / LOCK_FILE)
            continue
        with file:
            _lock(folder, file, kind)
            if _is_open(folder / LOCK_FILE, file):
                yield
                return


def _check_link(path: Path) -> None:
    """Nothing can be made under a name that is a link into nowhere, now or later."""
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{path} is a link that leads nowhere: remove it, rm {quote(str(path))}")


def _remove(folder: Path) -> None:
    # With the lock file gone another process may lock the folder anew before it is gone, too: then
    # it is that process's to remove.
    shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, file: BinaryIO, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"note: waiting for another process that writes {folder}", file=sys.stderr)
        fcntl.flock(file, kind)
    except OSError as error:
        raise ValueError(
            f"{folder.parent} is on a file system without file locks ({error}). Write to a local "
            "disk and move the complete folder."
        ) from error


def _is_open(path: Path, file: BinaryIO) -> bool:
    """Whether the file at `path` is still the one that was opened."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
