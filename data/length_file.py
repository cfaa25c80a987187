"""The buckets of `data.lengths`, kept in a file beside the data set.

They follow from the data set, the length of windows and the bounds, and computing them reads the
starts of all documents, 8 bytes each: so it is done once, by the first process that needs them, and
stored in the data set's folder as

    lengths-<key>.bin    a line of JSON, what they follow from; a byte per window; SHA-256

Opening it reads it whole, once, and compares line and checksum: a file that is damaged or of
something else is computed again. Where the folder cannot be written, the buckets stay in memory and
every start of a run computes them.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from data.folder import alone, sync
from data.lengths import BLOCK, LengthBuckets, block_counts, bucket_codes
from data.starts import DocumentStarts

_LOCK = "lengths.lock"
_DOCUMENTS = 1 << 15  # looked at at a time: what fits the cache of a core is fastest
_WINDOWS = 256 * BLOCK  # read at a time
_DIGEST = hashlib.sha256().digest_size


class StoredCodes:
    """Bytes of a file, by blocks of windows. It is opened on first use in each process."""

    def __init__(self, path: Path, offset: int, windows: int) -> None:
        self._path = path
        self._offset = offset
        self._windows = windows
        self._file: FileIO | None = None

    def __call__(self, block: int) -> np.ndarray:
        if self._file is None:
            self._file = FileIO(self._path)
        first = block * BLOCK
        count = min(BLOCK, self._windows - first)
        return np.frombuffer(os.pread(self._file.fileno(), count, self._offset + first), np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}


class KeptCodes:
    """The same from memory."""

    def __init__(self, codes: np.ndarray) -> None:
        self._codes = codes

    def __call__(self, block: int) -> np.ndarray:
        return self._codes[block * BLOCK : (block + 1) * BLOCK]


def open_buckets(
    folder: Path,
    fingerprint: str,
    starts: DocumentStarts,
    tokens: int,
    length: int,
    windows: int,
    bounds: Sequence[int],
) -> LengthBuckets:
    """The buckets of the windows of a split, computed if they are not stored yet.

    folder: of the data set.  fingerprint: of its contents.  See `data.lengths.bucket_codes`.

    Raises:
        ValueError: the starts of documents are damaged.
    """
    key = {
        "format": 1,
        "data_set": fingerprint,
        "tokens": tokens,
        "window": length,
        "windows": windows,
        "bounds": list(bounds),
    }
    header = json.dumps(key).encode() + b"\n"
    path = folder / f"lengths-{hashlib.sha256(header).hexdigest()[:16]}.bin"
    buckets = len(bounds) + 1

    def computed() -> Iterator[np.ndarray]:
        blocks = _told(starts.blocks(_DOCUMENTS), starts.count)
        return bucket_codes(blocks, tokens, length, windows, bounds)

    try:
        counts = _counts(path, header, windows, buckets)
        if counts is None:
            _store(path, header, computed, lambda: _counts(path, header, windows, buckets))
            counts = _counts(path, header, windows, buckets)
    except OSError as error:
        print(
            f"note: data.by_length: {path}: {error.strerror or error}. So the buckets take "
            f"{windows / 1e6:,.1f} MB of memory in every process, and every start computes them",
            file=sys.stderr,
        )
        codes = np.empty(windows, np.uint8)
        done = 0
        for some in computed():
            codes[done : done + len(some)] = some
            done += len(some)
        return LengthBuckets(KeptCodes(codes), block_counts(codes, buckets))
    assert counts is not None, path
    return LengthBuckets(StoredCodes(path, len(header), windows), counts)


def _counts(path: Path, header: bytes, windows: int, buckets: int) -> np.ndarray | None:
    """Windows of every block in every bucket; None: there is no such file, or it is damaged."""
    try:
        file = FileIO(path)
    except FileNotFoundError:
        return None
    with file:
        size = len(header) + windows + _DIGEST
        if os.fstat(file.fileno()).st_size != size or file.read(len(header)) != header:
            return None
        checksum = hashlib.sha256(header)
        counts = []
        codes = np.empty(min(windows, _WINDOWS), np.uint8)
        for first in range(0, windows, _WINDOWS):
            some = codes[: min(_WINDOWS, windows - first)]
            if file.readinto(some) < len(some):
                return None
            checksum.update(some)
            counts.append(block_counts(some, buckets))
        return np.concatenate(counts) if file.read(_DIGEST) == checksum.digest() else None


def _store(
    path: Path,
    header: bytes,
    computed: Callable[[], Iterator[np.ndarray]],
    stored: Callable[[], np.ndarray | None],
) -> None:
    """Writes the file, complete or not at all; of several processes one does, the others wait.

    Raises:
        OSError: it cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(alone(path.with_name(_LOCK)))
        except ValueError as error:  # a file system without locks
            raise OSError(str(error)) from error
        if stored() is not None:  # another process was first
            return
        if path.exists():
            print(f"note: {path} is damaged; its contents are computed again", file=sys.stderr)
        partial = path.with_suffix(".partial")
        checksum = hashlib.sha256(header)
        try:
            with partial.open("wb") as file:
                file.write(header)
                for codes in computed():
                    file.write(codes)
                    checksum.update(codes)
                file.write(checksum.digest())
                sync(file)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)  # such as where the disk is full


def _told(blocks: Iterator[np.ndarray], documents: int) -> Iterator[np.ndarray]:
    """The same blocks, with a progress bar where it takes long and somebody looks."""
    with tqdm(
        total=documents,
        desc="data.by_length",
        unit=" documents",
        unit_scale=True,
        delay=1,
        disable=not sys.stderr.isatty(),
    ) as bar:
        for block in blocks:
            yield block
            bar.update(len(block) - 1)
