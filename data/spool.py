"""The text of a source on disk, while it is prepared.

A source is read once, perhaps over a network, but its text is needed three times: to choose the
validation documents, to train the vocabulary, to encode. The spool is a temporary copy, as large as
the text.
"""

import hashlib
import heapq
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.index import LongDocument, Rejected
from data.sources import LeftOut, Source
from data.split import Assignment, family_key

_LONGEST = 5
_EXAMPLES = 100


class Spool:
    """All documents of a source, in order.

    Attributes: `sizes` int64 [documents] bytes, `keys` uint64 [documents] family keys, `rejected`,
    `longest`. Raises ValueError if the source is faulty or has no text.
    """

    def __init__(self, path: Path, source: Source, seed: int, progress: bool) -> None:
        self.path = path
        sizes, keys = array("q"), array("Q")
        counts: Counter[str] = Counter()
        examples: dict[str, list[str]] = {}
        longest: list[tuple[int, int, str]] = []
        with path.open("wb") as file, byte_bar("reading", source.total_bytes, progress) as bar:
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
        if not sizes:
            found = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            raise ValueError(
                f"{source.title} holds no text ({found or 'no documents'}). "
                "Give a source with text in data.files or data.hub."
            )
        self.sizes = np.frombuffer(sizes, dtype=np.int64)
        self.keys = np.frombuffer(keys, dtype=np.uint64)
        self.rejected = Rejected(counts=dict(counts), examples=examples)
        self.longest = [
            LongDocument(name=name, bytes=size) for size, _, name in sorted(longest, reverse=True)
        ]

    def texts(self, assignment: Assignment, validation: bool) -> Iterator[str]:
        """Documents of one split, in order."""
        cut_document, cut = assignment.cut or (-1, 0)
        with self.path.open("rb") as file:
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


def byte_bar(label: str, total: int | None, progress: bool) -> tqdm:
    """A progress bar in bytes; shown only for work of more than two seconds."""
    return tqdm(
        desc=label,
        total=total,
        unit="B",
        unit_scale=True,
        delay=2,
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
