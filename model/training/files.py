"""Small files written so that a reader sees the old content or the new one, never a half."""

import os
from pathlib import Path


def write_atomic(path: Path, text: str) -> None:
    """Replaces `path` by a file holding `text` (UTF-8); its folder must exist.

    The text reaches the disk before the name does, so that a power cut cannot leave an empty file.
    """
    temporary = path.with_name(f".{path.name}.partial")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flushes the names in `folder` (new, renamed and removed files) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
