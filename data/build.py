"""The steps of a preparation that one process and many tasks have in common.

Between `source_of` and `tidy` lie `data.spool.fill_spool`, `data.plan.make_plan`, `encode_part` and
`data.merge.merge`, in this order; each does nothing where it was done before.
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

from data.config import DataConfig, TokenizerConfig
from data.encode import write_split
from data.files import files_source
from data.folder import LOCK_FILE, write_atomically
from data.hub import hub_source
from data.index import FORMAT_VERSION, files_of, read_index
from data.merge import EncodedPart, encoded_file, gzip_bytes
from data.plan import part_folder
from data.sources import Part, Source
from data.spool import TEXT_FILE, byte_bar
from data.stdlib import stdlib_source
from data.tokenizer import given_tokenizer


def source_of(data: DataConfig) -> Source:
    """What the settings name."""
    if data.files is not None:
        return files_source(data.patterns, data.text_column, data.skip_bad_records)
    return stdlib_source() if data.hub is None else hub_source(data)


def folder_of(source: Source, data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """Where the data set is, or will be."""
    # What only a file can have is no part of the name of a set whose tokenizer is trained.
    settings = tokenizer.model_dump(exclude={"bos", "eos", "pad"})
    if tokenizer.path is not None:
        settings = {"fingerprint": given_tokenizer(tokenizer).fingerprint}
    parts = [FORMAT_VERSION, source.description, data.validation_bytes, data.seed, settings]
    if data.drop_duplicates:
        parts.append("drop_duplicates")
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
    return Path(data.root) / f"{source.name}-{key}"


def encode_part(folder: Path, part: Part, data: DataConfig, progress: bool) -> EncodedPart:
    """Writes the shards of a part, unless that was done before."""
    path = encoded_file(folder, part.number)
    if path.exists():
        return EncodedPart.model_validate_json(path.read_bytes())
    processes = data.processes or available_cores()
    text = part_folder(folder, part.number) / TEXT_FILE
    ending = "" if part.count == 1 else f"-{part.number:05d}"
    with byte_bar("encoding", text.stat().st_size, progress) as bar:
        train, train_cuts = write_split(
            folder, part.number, f"train{ending}", "train", processes, bar
        )
        validation, validation_cuts = write_split(
            folder, part.number, f"validation{ending}", "validation", processes, bar
        )
    encoded = EncodedPart(
        train=train,
        validation=validation,
        validation_gzip_bytes=gzip_bytes(folder, part.number, "validation"),
        unsafe_cuts=train_cuts + validation_cuts,
    )
    write_atomically(path, encoded.model_dump_json().encode())
    return encoded


def tidy(folder: Path) -> None:
    """Removes from a folder with an index all that is no part of the data set; tells its notes."""
    index = read_index(folder)
    keep = files_of(index) | {LOCK_FILE}
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name not in keep:
            entry.unlink()
    for note in index.notes:
        print(f"note: {note}", file=sys.stderr)


def available_cores() -> int:
    """Cores that this process may use; a SLURM task has a share of the machine's."""
    return os.cpu_count() if sys.platform == "darwin" else len(os.sched_getaffinity(0))
