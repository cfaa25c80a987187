"""The embedded corpus: source text of the running Python's standard library.

About 11 MB of code and English that is present on every machine. Left out are tests, installed
packages, the tables of character codes in `encodings` (generated, near copies of each other, and a
sixth of all tokens), the record of how this Python was built (generated, and full of this machine's
paths) and the few files that are not UTF-8.
"""

import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

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

_SKIPPED_FOLDERS = {
    *("test", "tests", "idle_test", "encodings"),
    *("site-packages", "dist-packages", "__pycache__"),
}
_TITLE = "The standard library"
_BUILD_RECORD = "_sysconfigdata"


def stdlib_source() -> Source:
    """All .py files of the standard library, in the order of their paths."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(_python_files(root), key=lambda path: path.relative_to(root).as_posix())
    names = [path.relative_to(root).as_posix() for path in paths]
    files = describe_files(paths, names)
    description = {"kind": "stdlib", "python": platform.python_version(), **files}

    def documents(part: Part = WHOLE) -> Iterator[Document | LeftOut]:
        chosen = files_of_part([path.stat().st_size for path in paths], part, _TITLE)
        for path, name in zip(paths[chosen], names[chosen], strict=True):
            try:
                text = decoded(path.read_bytes())
            except UnicodeDecodeError:
                yield LeftOut(name, "not UTF-8")
                continue
            yield document(name, text)

    return Source("stdlib", _TITLE, description, files["bytes"], documents, len(paths))


def _python_files(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name not in _SKIPPED_FOLDERS and not entry.is_symlink():
                yield from _python_files(entry)
        elif entry.suffix == ".py" and entry.is_file() and not entry.name.startswith(_BUILD_RECORD):
            yield entry
