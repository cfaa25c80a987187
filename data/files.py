"""Documents from local files.

Text files are one document each, byte for byte. JSON lines are read here, line by line, rather than
through `datasets`, whose reader infers column types (a column of dates becomes timestamps) and
cannot say which record is wrong. Parquet and Arrow files are read through `datasets`.
"""

import glob
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.sources import Document, LeftOut, Source, describe_files, document
from data.tokenizer import check_unicode

_JSON_LINES = (".jsonl", ".jsonl.gz")
_TABLES = {".parquet": "parquet", ".arrow": "arrow"}
_NAMED = 10


def files_source(patterns: list[str], text_column: str) -> Source:
    """All files that match any of the globs, sorted by path, each once.

    Raises ValueError if a glob matches no file.
    """
    paths = _matching(patterns)
    base = os.path.commonpath([path.parent for path in paths])
    names = [os.path.relpath(path, base) for path in paths]
    files = describe_files(paths, names)
    description = {"kind": "files", "text_column": text_column, **files}

    def documents() -> Iterator[Document | LeftOut]:
        invalid: list[str] = []
        for path, name in zip(paths, names, strict=True):
            if name.endswith(_JSON_LINES):
                yield from _json_lines(path, name, text_column, invalid)
            elif path.suffix in _TABLES:
                yield from _table(path, name, text_column)
            else:
                data = path.read_bytes()
                try:
                    text = data.decode("utf-8")
                except UnicodeDecodeError as error:
                    invalid.append(f"{path} (byte {error.start})")
                    continue
                yield document(name, text)
        if invalid:
            more = f" and {len(invalid) - _NAMED} more" if len(invalid) > _NAMED else ""
            raise ValueError(
                f"Not valid UTF-8: {', '.join(invalid[:_NAMED])}{more}. "
                "Convert these files to UTF-8 or leave them out of data.files."
            )

    return Source(
        _name(patterns[0]),
        f"data.files={','.join(patterns)}",
        description,
        files["bytes"],
        documents,
    )


def record_text(record: dict[str, Any], text_column: str, where: str) -> str:
    """Text of a record. Raises ValueError, naming `where` and the columns, if it has none."""
    if text_column not in record:
        raise ValueError(
            f"{where} has no column {text_column!r}; its columns are {', '.join(record)}. "
            "Type data.text_column=... with one of them."
        )
    text = record[text_column]
    if not isinstance(text, str):
        raise ValueError(
            f"{where} has {type(text).__name__} {text!r:.40} in column {text_column!r}, not text; "
            f"its columns are {', '.join(record)}. Remove the record or type "
            "data.text_column=... with a column of text."
        )
    try:
        check_unicode(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return text


def _matching(patterns: list[str]) -> list[Path]:
    found: set[str] = set()
    for pattern in patterns:
        matches = glob.glob(os.path.expanduser(pattern), recursive=True)
        files = [os.path.abspath(match) for match in matches if os.path.isfile(match)]
        if not files:
            folders = "; it matches folders only: type e.g. 'FOLDER/**/*.txt'" if matches else ""
            raise ValueError(
                f"data.files={pattern} matches no file (looked from {os.getcwd()}){folders}."
            )
        found.update(files)
    return [Path(path) for path in sorted(found)]


def _name(pattern: str) -> str:
    """The last part of a glob without wildcards: mytext/*.jsonl is mytext, a/b.txt is b."""
    parts = [part for part in Path(pattern).parts if not glob.has_magic(part) and part.strip("./")]
    stem = Path(parts[-1]).name.split(".")[0] if parts else ""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "files"


def _json_lines(
    path: Path, name: str, text_column: str, invalid: list[str]
) -> Iterator[Document | LeftOut]:
    """Records of a file; puts the file on the list `invalid`, and stops, at bytes that are no
    UTF-8."""
    offset = number = 0
    with (gzip.open if name.endswith(".gz") else open)(path, "rb") as file:
        for line in file:
            try:
                content = line.decode("utf-8")
            except UnicodeDecodeError as error:
                invalid.append(f"{path} (byte {offset + error.start})")
                return
            offset += len(line)
            if content.strip():
                number += 1
                where = f"{path} record {number}"
                yield document(
                    f"{name}:{number}", record_text(_record(content, where), text_column, where)
                )


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{where} is not JSON: {error}. A record is one object on one line."
        ) from None
    if not isinstance(record, dict):
        raise ValueError(f"{where} is {type(record).__name__}, not an object {{...}}.")
    return record


def _table(path: Path, name: str, text_column: str) -> Iterator[Document | LeftOut]:
    from datasets import load_dataset

    try:
        records = load_dataset(
            _TABLES[path.suffix], data_files=str(path), split="train", streaming=True
        )
        for number, record in enumerate(records, start=1):
            text = record_text(record, text_column, f"{path} record {number}")
            yield document(f"{name}:{number}", text)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be read as {_TABLES[path.suffix]}: {error}") from error
