"""The text of a source, or of one part of it, on disk while it is prepared.

A source is read once, perhaps over a network, but its text is needed three times: to choose the
validation documents, to train the vocabulary, to encode. The spool is a temporary copy, as large as
the text. In memory a document takes 32 bytes while it is read: its size, its family and a hash of
16 bytes of its text.
"""

import hashlib
import heapq
import shutil
import sys
from array import array
from collections import Counter
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict
from tqdm import tqdm

from data.folder import save_array, sync, write_atomically
from data.index import LongDocument, Rejected
from data.sources import LeftOut, Part, Source
from data.split import family_key

LONGEST = 5
"""How many of the longest documents are named."""

EXAMPLES = 100
"""How many documents that were left out are named for each reason."""

TEXT_FILE = "spool"

_SIZES, _KEYS, _HASHES = "spool-sizes.npy", "spool-keys.npy", "spool-hashes.npy"
_NAMES, _RECORD = "spool-names", "spool.json"


class SpoolRecord(BaseModel):
    """What is known of the source besides sizes, families and hashes. It marks a complete spool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rejected: Rejected
    longest: list[LongDocument]


class Spool:
    """All documents of a part of a source, in order, joined in the file `TEXT_FILE`.

    Attributes: `sizes` int64 [documents] bytes, `keys` uint64 [documents] family keys, `hashes`
    uint64 [documents, 2] of the texts, `record`.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the complete spool in `folder` (see `fill_spool`)."""
        self._folder = folder
        self.sizes = np.load(folder / _SIZES, mmap_mode="r")
        self.keys = np.load(folder / _KEYS, mmap_mode="r")
        self.hashes = np.load(folder / _HASHES, mmap_mode="r").reshape(-1, 2)
        self.record = SpoolRecord.model_validate_json((folder / _RECORD).read_bytes())

    def names(self, documents: set[int]) -> dict[int, str]:
        """Names of these documents."""
        found = {}
        with (self._folder / _NAMES).open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number in documents:
                    found[number] = line[:-1]
                if len(found) == len(documents):
                    break
        return found


def is_complete(folder: Path) -> bool:
    """Whether `fill_spool` was done with this folder."""
    return (folder / _RECORD).exists()


def fill_spool(folder: Path, source: Source, part: Part, seed: int, progress: bool) -> Spool:
    """Copies a part of a source into `folder`, unless that was done before.

    Raises ValueError if the source is faulty.
    """
    if is_complete(folder):
        return Spool(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sizes, keys, hashes = array("q"), array("Q"), array("Q")
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    longest: list[tuple[int, int, str]] = []
    total = None if source.total_bytes is None else source.total_bytes // part.count
    with (
        (folder / TEXT_FILE).open("wb") as file,
        (folder / _NAMES).open("w", encoding="utf-8") as names,
        byte_bar("reading", total, progress) as bar,
    ):
        for item in source.documents(part):
            name = _printable(item.name)
            if isinstance(item, LeftOut):
                counts[item.reason] += 1
                named = examples.setdefault(item.reason, [])
                if len(named) < EXAMPLES:
                    named.append(name)
                continue
            size, digest = 0, hashlib.sha256()
            for piece in item.pieces():
                data = piece.encode("utf-8")
                file.write(data)
                digest.update(data)
                size += len(data)
                bar.update(len(data))
            heapq.heappush(longest, (size, -len(sizes), name))
            if len(longest) > LONGEST:
                heapq.heappop(longest)
            sizes.append(size)
            keys.append(family_key(seed, item.family or digest.hexdigest()))
            hashes.frombytes(digest.digest()[:16])
            names.write(name + "\n")
        sync(file)
        names.flush()
    save_array(folder / _SIZES, np.frombuffer(sizes, dtype=np.int64))
    save_array(folder / _KEYS, np.frombuffer(keys, dtype=np.uint64))
    save_array(folder / _HASHES, np.frombuffer(hashes, dtype=np.uint64))
    record = SpoolRecord(
        rejected=Rejected(counts=dict(counts), examples=examples),
        longest=[
            LongDocument(name=name, bytes=size) for size, _, name in sorted(longest, reverse=True)
        ],
    )
    write_atomically(folder / _RECORD, record.model_dump_json().encode())
    return Spool(folder)


def _printable(name: str) -> str:
    """A name on one line, of Unicode text: names of files may be any bytes but 0 and /."""
    return " ".join(name.encode("utf-8", "backslashreplace").decode().splitlines())


def byte_bar(label: str, total: int | None, progress: bool) -> tqdm:
    """A progress bar in bytes, shown only for work of more than two seconds; slow in log files."""
    return tqdm(
        desc=label,
        total=total,
        unit="B",
        unit_scale=True,
        delay=2,
        mininterval=0.5 if sys.stderr.isatty() else 30,
        disable=not progress,
        leave=False,
    )
