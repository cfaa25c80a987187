"""The text of a source on disk, while it is prepared.

A source is read once, perhaps over a network, but its text is needed three times: to choose the
validation documents, to train the vocabulary, to encode. The spool is a temporary copy, as large as
the text.
"""

import hashlib
import heapq
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict
from tqdm import tqdm

from data.folder import save_array, sync, write_atomically
from data.index import LongDocument, Rejected
from data.sources import LeftOut, Source
from data.split import Assignment, family_key

_LONGEST = 5
_EXAMPLES = 100
_TEXT, _SIZES, _KEYS, _RECORD = "spool", "spool-sizes.npy", "spool-keys.npy", "spool.json"


class SpoolRecord(BaseModel):
    """What is known of the source besides sizes and families. It marks a complete spool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rejected: Rejected
    longest: list[LongDocument]


class Spool:
    """All documents of a source, in order.

    Attributes: `sizes` int64 [documents] bytes, `keys` uint64 [documents] family keys, `record`.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the complete spool in `folder` (see `fill_spool`)."""
        self._path = folder / _TEXT
        self.sizes = np.load(folder / _SIZES)
        self.keys = np.load(folder / _KEYS)
        self.record = SpoolRecord.model_validate_json((folder / _RECORD).read_bytes())

    def texts(self, assignment: Assignment, validation: bool) -> Iterator[str]:
        """Documents of one split, in order."""
        cut_document, cut = assignment.cut or (-1, 0)
        with self._path.open("rb") as file:
            for number, size in enumerate(self.sizes.tolist()):
                chosen = bool(assignment.validation[number])
                if number != cut_document and chosen != validation:
                    file.seek(size, 1)
                    continue
                data = file.read(size)
                if number == cut_document:
                    border = _line_start(data, cut)
                    data = data[border:] if validation else data[:border]
                if data:
                    yield data.decode("utf-8")


def fill_spool(folder: Path, source: Source, seed: int, progress: bool) -> Spool:
    """Copies a source into `folder`, unless that was done before.

    Raises ValueError if the source is faulty or has no text.
    """
    if (folder / _RECORD).exists():
        return Spool(folder)
    sizes, keys = array("q"), array("Q")
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    longest: list[tuple[int, int, str]] = []
    with (
        (folder / _TEXT).open("wb") as file,
        byte_bar("reading", source.total_bytes, progress) as bar,
    ):
        for item in source.documents():
            if isinstance(item, LeftOut):
                counts[item.reason] += 1
                named = examples.setdefault(item.reason, [])
                if len(named) < _EXAMPLES:
                    named.append(item.name)
                continue
            data = item.text.encode("utf-8")
            family = item.family or hashlib.sha256(data).hexdigest()
            heapq.heappush(longest, (len(data), -len(sizes), item.name))
            if len(longest) > _LONGEST:
                heapq.heappop(longest)
            sizes.append(len(data))
            keys.append(family_key(seed, family))
            file.write(data)
            bar.update(len(data))
        sync(file)
    if not sizes:
        found = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        raise ValueError(
            f"{source.title} holds no text ({found or 'no documents'}). "
            "Give a source with text in data.files or data.hub."
        )
    save_array(folder / _SIZES, np.frombuffer(sizes, dtype=np.int64))
    save_array(folder / _KEYS, np.frombuffer(keys, dtype=np.uint64))
    record = SpoolRecord(
        rejected=Rejected(counts=dict(counts), examples=examples),
        longest=[
            LongDocument(name=name, bytes=size) for size, _, name in sorted(longest, reverse=True)
        ],
    )
    write_atomically(folder / _RECORD, record.model_dump_json().encode())
    return Spool(folder)


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


def _line_start(data: bytes, cut: int) -> int:
    """The first start of a line, or else of a character, in the half of `data` from `cut` on."""
    newline = data.find(b"\n", cut, (cut + len(data)) // 2)
    if newline >= 0:
        return newline + 1
    while cut < len(data) and data[cut] & 0xC0 == 0x80:
        cut += 1
    return cut
