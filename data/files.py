"""Documents from local files.

Text files are one document each, byte for byte but for a byte order mark, and long ones are read in
pieces; a record has to fit into memory. JSON lines are read here,
line by line, rather than through `datasets`, whose reader infers column types (a column of dates
becomes timestamps) and cannot say which record is wrong. Parquet and Arrow files are read through
`datasets`.
"""

import codecs
import errno
import glob
import gzip
import json
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from conf.paths import located
from data.index import INDEX_FILE
from data.sources import (
    WHOLE,
    Document,
    LeftOut,
    Part,
    Source,
    decoded,
    describe_files,
    document,
    files_of_part,
)
from data.tokenizer import check_unicode

if TYPE_CHECKING:
    from datasets import IterableDataset

_JSON_LINES = (".jsonl", ".jsonl.gz")
_COMPRESSED = (".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip")
_RECORDS = (".json", ".ndjson", ".csv", ".tsv")
"""Files that often hold records, but are read as text."""
_TABLES = {".parquet": "parquet", ".arrow": "arrow"}
_NAMED = 10
_NOT_UTF8 = "not UTF-8"
_PIECE = 1 << 20
"""Bytes of a text file that are read at once."""


class BadRecord(ValueError):
    """A record, or a text file, that holds no usable text. `reason`: a few words, to be counted."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(
            f"{message.rstrip('. ')}. With data.skip_bad_records=true such records are left out "
            "and counted."
        )
        self.reason = reason


def files_source(patterns: list[str], text_column: str, skip_bad: bool = False) -> Source:
    """All files that match any of the globs, sorted by path, each once.

    skip_bad: leave bad records out (`LeftOut`) instead of raising.

    Raises ValueError if a glob matches no file.
    """
    paths = _matching(patterns)
    base = os.path.commonpath([path.parent for path in paths])
    names = [os.path.relpath(path, base) for path in paths]
    files = describe_files(paths, names)
    description = {"kind": "files", "text_column": text_column, **files}
    if skip_bad:
        description["skip_bad_records"] = True
    title = f"data.files={','.join(patterns)}"

    def documents(part: Part = WHOLE) -> Iterator[Document | LeftOut]:
        invalid: list[str] = []
        chosen = files_of_part([path.stat().st_size for path in paths], part, title)
        for path, name in zip(paths[chosen], names[chosen], strict=True):
            if name.lower().endswith(_JSON_LINES):
                with located(path):
                    yield from _json_lines(path, name, text_column, skip_bad, invalid)
            elif path.suffix.lower() in _TABLES:
                yield from _table(path, name, text_column, skip_bad)
            else:
                with located(path):
                    yield from _text(path, name, skip_bad, invalid)
        if invalid:
            more = f" and {len(invalid) - _NAMED} more" if len(invalid) > _NAMED else ""
            raise BadRecord(
                f"Not valid UTF-8: {', '.join(invalid[:_NAMED])}{more}. "
                "Convert these files to UTF-8 or leave them out of data.files",
                _NOT_UTF8,
            )

    return Source(
        _name(patterns[0]),
        title,
        description,
        files["bytes"],
        documents,
        files["files"],
    )


def record_text(
    record: dict[str, Any], text_column: str, where: str, columns: Iterable[str] = ()
) -> str:
    """Text of a record. Raises BadRecord, naming `where` and the columns, if it has none.

    columns: those of the source, if the record is only a part of it.
    """
    listing = ", ".join(columns or record)
    if text_column not in record:
        raise BadRecord(
            f"{where} has no column {text_column!r}; its columns are {listing}. "
            "Type data.text_column=... with one of them",
            f"without column {text_column!r}",
        )
    text = record[text_column]
    if not isinstance(text, str):
        raise BadRecord(
            f"{where} has {type(text).__name__} {text!r:.40} in column {text_column!r}, not text; "
            f"its columns are {listing}. Remove the record or type data.text_column=... with a "
            "column of text",
            f"{type(text).__name__} instead of text",
        )
    try:
        check_unicode(text)
    except ValueError as error:
        raise BadRecord(f"{where}: {error}", "with a lone surrogate") from None
    return text


def table_documents(
    load: Callable[[], "IterableDataset"],
    name: str,
    text_column: str,
    where: str,
    advice: str,
    skip_bad: bool,
) -> Iterator[Document | LeftOut]:
    """Records of a streamed `datasets` data set, in order.

    Raises ValueError naming `where`; if the data set cannot be read, with `advice`.
    """
    columns: list[str] = []
    records = _loaded(load, text_column, columns)
    number = 0
    while True:
        number += 1
        try:
            record = next(records, None)
        except Exception as error:  # whatever the reader or the network raises: one clear error
            reason = f"{type(error).__name__}: {error}".rstrip(". \n")
            raise ValueError(f"{where} cannot be read: {reason}. {advice}") from error
        if record is None:
            return
        text = partial(record_text, record, text_column, f"{where} record {number}", columns)
        yield _document(f"{name}:{number}", text, skip_bad)


def _document(name: str, text: Callable[[], str], skip_bad: bool) -> Document | LeftOut:
    try:
        return document(name, text())
    except BadRecord as error:
        if not skip_bad:
            raise
        return LeftOut(name, error.reason)


def _loaded(
    load: Callable[[], "IterableDataset"], text_column: str, columns: list[str]
) -> Iterator[dict[str, Any]]:
    """Records with the text column alone, if it is known to exist; fills in `columns`."""
    # The readers of `datasets` log what they then raise, too.
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)
    records = load()
    columns += records.column_names or []
    yield from records.select_columns([text_column]) if text_column in columns else records


def _matching(patterns: list[str]) -> list[Path]:
    found: set[str] = set()
    for pattern in patterns:
        path = os.path.expanduser(pattern)
        matches = [path] if os.path.exists(path) else _globbed(path)
        files = [os.path.abspath(match) for match in matches if not os.path.isdir(match)]
        if not files:
            folders = "; it matches folders only: type e.g. 'FOLDER/**/*.txt'" if matches else ""
            raise ValueError(
                f"data.files={pattern} matches no file (looked from {os.getcwd()}){folders}."
            )
        found.update(files)
    paths = [Path(path) for path in sorted(found)]
    _check_kinds(paths)
    return paths


def _globbed(pattern: str) -> list[str]:
    """What a glob matches. Raises PermissionError where it leads through a folder that cannot be
    read, which Python passes over."""
    parts = Path(pattern).parts
    for depth in range(1, len(parts)):
        if any(map(glob.has_magic, parts[: depth + 1])):
            above = os.path.join(*parts[:depth], "")  # with a slash at the end: folders only
            for folder in glob.iglob(above, recursive=True):
                if not os.access(folder, os.R_OK | os.X_OK):
                    reason = os.strerror(errno.EACCES)
                    raise PermissionError(errno.EACCES, reason, os.path.abspath(folder))
    return glob.glob(pattern, recursive=True)


def _check_kinds(paths: list[Path]) -> None:
    """Raises ValueError on what is no file, compressed or prepared; tells of likely records."""
    for path in paths:
        if not path.is_file():
            what = "a link that leads nowhere" if path.is_symlink() else "no regular file"
            raise ValueError(f"data.files: {path} is {what}. Remove it, or give a narrower glob.")
    for path in paths:
        name = path.name.lower()
        if name.endswith(_COMPRESSED) and not name.endswith(_JSON_LINES):
            raise ValueError(
                f"data.files: {path} is compressed; of compressed files, only .jsonl.gz is read. "
                "Unpack it, or give a narrower glob."
            )
    for folder in sorted({path.parent for path in paths}):
        if all((folder / name).is_file() for name in (INDEX_FILE, "train-documents.npy")):
            raise ValueError(
                f"data.files: {folder} is a prepared data set, no text. Give a narrower glob, or a "
                "data.root that it does not match."
            )
    records = [path for path in paths if path.suffix.lower() in _RECORDS]
    if records:
        print(
            f"note: {len(records)} files such as {records[0]} are read as text, one document each; "
            f"records are read from {', '.join((*_JSON_LINES, *_TABLES))}",
            file=sys.stderr,
        )


def _name(pattern: str) -> str:
    """The last part of a glob without wildcards: mytext/*.jsonl is mytext, a/b.txt is b."""
    parts = [part for part in Path(pattern).parts if not glob.has_magic(part) and part.strip("./")]
    stem = Path(parts[-1]).name.split(".")[0] if parts else ""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "files"


def _text(
    path: Path, name: str, skip_bad: bool, invalid: list[str]
) -> Iterator[Document | LeftOut]:
    """A file that is one document. If it is not UTF-8 it is left out or put on `invalid`."""
    if skip_bad and not _is_utf8(path):
        yield LeftOut(name, _NOT_UTF8)
        return
    with path.open("rb") as file:
        data = file.read(_PIECE)
        if len(data) == _PIECE:
            yield Document(name, _pieces(file, data, path, invalid))
            return
        try:
            text = decoded(data)
        except UnicodeDecodeError as error:
            invalid.append(f"{path} (byte {error.start})")
        else:
            yield document(name, text)


def _is_utf8(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while data := file.read(_PIECE):
                decoder.decode(data)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _pieces(file: BinaryIO, data: bytes, path: Path, invalid: list[str]) -> Iterator[str]:
    """The text of a file of which `data` was read already."""
    begin = 0
    while data:
        with located(path):
            more = file.read(_PIECE)
        try:
            text, used = codecs.utf_8_decode(data, "strict", not more)
        except UnicodeDecodeError as error:
            invalid.append(f"{path} (byte {begin + error.start})")
            return
        yield text if begin else text.removeprefix("\ufeff")
        begin += used
        data = data[used:] + more


def _json_lines(
    path: Path, name: str, text_column: str, skip_bad: bool, invalid: list[str]
) -> Iterator[Document | LeftOut]:
    """Records of a file. Bytes that are not UTF-8 put it on the list `invalid` and end it, or leave
    out the record."""
    offset = number = 0
    for line in _lines(path):
        try:
            content = line.decode("utf-8") if offset else decoded(line)
        except UnicodeDecodeError as error:
            if not skip_bad:
                invalid.append(f"{path} (byte {offset + error.start})")
                return
            content = None
        offset += len(line)
        del line  # a long record is in memory more than once as it is
        if content is None:
            number += 1
            yield LeftOut(f"{name}:{number}", _NOT_UTF8)
        elif content and not content.isspace():
            number += 1
            text = partial(_json_text, content, text_column, f"{path} record {number}")
            item = _document(f"{name}:{number}", text, skip_bad)
            del content, text
            yield item
    if number == 0:
        yield LeftOut(name, "no records")


def _json_text(line: str, text_column: str, where: str) -> str:
    return record_text(_record(line, where), text_column, where)


def _lines(path: Path) -> Iterator[bytes]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rb") as file:
            yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file: {error}") from error


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # the latter: thousands of lists in one another
        raise BadRecord(
            f"{where} is not JSON: {error}. A record is one object on one line", "not JSON"
        ) from None
    if not isinstance(record, dict):
        raise BadRecord(
            f"{where} is {type(record).__name__}, not an object {{...}}", "not an object"
        )
    return record


def _table(path: Path, name: str, text_column: str, skip_bad: bool) -> Iterator[Document | LeftOut]:
    from datasets import load_dataset

    load = partial(
        load_dataset,
        _TABLES[path.suffix.lower()],
        data_files=str(path),
        split="train",
        streaming=True,
    )
    advice = f"Is it a complete {path.suffix} file?"
    is_empty = True
    for item in table_documents(load, name, text_column, str(path), advice, skip_bad):
        is_empty = False
        yield item
    if is_empty:
        yield LeftOut(name, "no records")
