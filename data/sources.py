"""Where documents come from: the one place that knows all kinds of sources.

A `Source` can be described without reading its text, so that a data set that was prepared before is
found at once, and is then read once, from front to back.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Document:
    """One text. Documents of one `family` stay on one side of the validation split; without a
    family only documents with equal text do."""

    name: str
    text: str
    family: str | None = None


@dataclass(frozen=True)
class LeftOut:
    """A document that is not used, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Source:
    """name: part of the prepared folder's name.  title: what error messages call it.
    description: JSON values that determine the text.  total_bytes: for the progress bar; None if
    unknown."""

    name: str
    title: str
    description: dict[str, Any]
    total_bytes: int | None
    documents: Callable[[], Iterator[Document | LeftOut]]


def decoded(data: bytes) -> str:
    """Text of the beginning of a file, or of all of it, without a byte order mark.

    Some editors mark UTF-8 files with one (U+FEFF); it is no part of the text. Only the first
    character is meant: anywhere else U+FEFF is text. Raises UnicodeDecodeError.
    """
    return data.decode("utf-8").removeprefix("\ufeff")


def document(name: str, text: str, family: str | None = None) -> Document | LeftOut:
    """A document, or the note that it is empty."""
    return Document(name, text, family) if text else LeftOut(name, "empty")


def describe_files(paths: list[Path], names: list[str]) -> dict[str, Any]:
    """Number of files and a digest of their names, sizes and modification times."""
    rows = []
    for path, name in zip(paths, names, strict=True):
        status = path.stat()
        rows.append([name, status.st_size, status.st_mtime_ns])
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    return {"files": len(rows), "bytes": sum(row[1] for row in rows), "digest": digest}
