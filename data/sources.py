"""Where documents come from: the one place that knows all kinds of sources.

A `Source` can be described without reading its text, so that a data set that was prepared before is
found at once, and is then read once, from front to back.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Part(NamedTuple):
    """Part `number` (from 0) of `count`; all parts in order are the whole source."""

    number: int
    count: int


WHOLE = Part(0, 1)

_PIECE = 1 << 20


@dataclass(frozen=True)
class Document:
    """One text, whole or as strings to be joined, which are read once, before the next document.
    Documents of one `family` stay on one side of the validation split; without a family only
    documents with equal text do."""

    name: str
    text: str | Iterable[str]
    family: str | None = None

    def pieces(self) -> Iterable[str]:
        """The text as strings to be joined, none of them long."""
        if not isinstance(self.text, str):
            return self.text
        return (self.text[i : i + _PIECE] for i in range(0, len(self.text), _PIECE))


@dataclass(frozen=True)
class LeftOut:
    """A document that is not used, and why."""

    name: str
    reason: str


class Reader(Protocol):
    """Reads the documents of one part of a source."""

    def __call__(self, part: Part = WHOLE) -> Iterator[Document | LeftOut]: ...


@dataclass(frozen=True)
class Source:
    """name: part of the prepared folder's name.  title: what error messages call it.
    description: JSON values that determine the text.  total_bytes: for the progress bar; None if
    unknown.  documents: raises ValueError for a part of more than there are files.  files: their
    number; None if it is unknown before they are read."""

    name: str
    title: str
    description: dict[str, Any]
    total_bytes: int | None
    documents: Reader
    files: int | None = None


def decoded(data: bytes) -> str:
    """Text of the beginning of a file, or of all of it, without a byte order mark.

    Some editors mark UTF-8 files with one (U+FEFF); it is no part of the text. Only the first
    character is meant: anywhere else U+FEFF is text. Raises UnicodeDecodeError.
    """
    return data.decode("utf-8").removeprefix("\ufeff")


def document(name: str, text: str, family: str | None = None) -> Document | LeftOut:
    """A document, or the note that it is empty."""
    return Document(name, text, family) if text else LeftOut(name, "empty")


def files_of_part(sizes: list[int], part: Part, title: str) -> slice:
    """The files of a part: neighbours, about as many bytes as in other parts, at least one file.

    Raises ValueError if there are more parts than files.
    """
    if part.count > len(sizes):
        raise ValueError(
            f"shard={part.number}/{part.count}: {title} has {len(sizes)} files, which cannot be "
            f"shared by {part.count} tasks. Type shard=I/{len(sizes)} or less, or split the files."
        )
    before = [0, *accumulate(sizes)]
    borders = [0]
    for number in range(1, part.count):
        even = bisect_left(before, before[-1] * number / part.count)
        borders.append(min(max(even, borders[-1] + 1), len(sizes) - part.count + number))
    borders.append(len(sizes))
    return slice(borders[part.number], borders[part.number + 1])


def describe_files(paths: list[Path], names: list[str]) -> dict[str, Any]:
    """Number of files and a digest of their names, sizes and modification times."""
    rows = []
    for path, name in zip(paths, names, strict=True):
        status = path.stat()
        rows.append([name, status.st_size, status.st_mtime_ns])
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    return {"files": len(rows), "bytes": sum(row[1] for row in rows), "digest": digest}
