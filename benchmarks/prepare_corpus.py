"""A synthetic corpus for `python -m benchmarks.prepare`: short documents and a long one.

Lines of the source of Python's standard library in random order. Short documents have lengths drawn
from a log-normal distribution (60 lines in the median), in JSON lines; the long one is a text file.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.stdlib import stdlib_source

_FILE_BYTES = 64_000_000
_LINES_AT_ONCE = 20_000


def write_corpus(folder: Path, size: int, longest: int, seed: int) -> None:
    """Writes files of about `size` bytes of text, of which one document has about `longest`."""
    lines = source_lines()
    source = np.random.default_rng(seed)
    with (folder / "long.txt").open("w", encoding="utf-8", newline="") as file:
        written = 0
        for text in _texts(lines, source):
            if written >= longest:
                break
            written += file.write(text[: longest - written])
    left, number = size - longest, 0
    while left > 0:
        left -= _write_records(
            folder / f"short-{number:03d}.jsonl", lines, source, min(left, _FILE_BYTES)
        )
        number += 1


def source_lines() -> list[str]:
    """Every line of the standard library, in order."""
    texts = [item.text for item in stdlib_source().documents() if hasattr(item, "text")]
    return [line for text in texts for line in text.splitlines(keepends=True)]


def some_text(characters: int, seed: int) -> str:
    """The beginning of a long document as in a corpus of this seed."""
    parts, length = [], 0
    for text in _texts(source_lines(), np.random.default_rng(seed)):
        parts.append(text)
        length += len(text)
        if length >= characters:
            return "".join(parts)[:characters]
    raise AssertionError("texts do not end")


def _texts(lines: list[str], source: np.random.Generator) -> Iterator[str]:
    while True:
        chosen = source.integers(0, len(lines), _LINES_AT_ONCE).tolist()
        yield "".join([lines[number] for number in chosen])


def _write_records(path: Path, lines: list[str], source: np.random.Generator, size: int) -> int:
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            count = 1 + int(source.lognormal(np.log(60), 1.0))
            chosen = source.integers(0, len(lines), count).tolist()
            text = "".join([lines[number] for number in chosen])
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            written += len(text)
    return written
