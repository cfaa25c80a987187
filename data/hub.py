"""Documents from a Hugging Face data set: a name on the hub, or a local folder `datasets` can
load."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from conf.cli import override
from data.config import DataConfig
from data.files import table_documents
from data.sources import (
    WHOLE,
    Document,
    LeftOut,
    Part,
    Source,
    describe_files,
    files_of_part,
)

if TYPE_CHECKING:
    from datasets import IterableDataset

_ADVICE = (
    "Check the name, data.hub_config and data.hub_split, and that this machine reaches the hub; or "
    "prepare the data set elsewhere and type data=prepared data.dir=FOLDER."
)


_KINDS = (".txt", ".csv", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".parquet", ".arrow")


def hub_source(data: DataConfig) -> Source:
    """The records of one split, streamed in their order."""
    description = {
        "kind": "hub",
        "hub": data.hub,
        "config": data.hub_config,
        "split": data.hub_split,
        "text_column": data.text_column,
    }
    if data.skip_bad_records:
        description["skip_bad_records"] = True
    folder = Path(data.hub)
    if folder.is_dir():
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        _check_folder(folder, paths)
        names = [path.relative_to(folder).as_posix() for path in paths]
        description |= describe_files(paths, names)
    name = "-".join(part for part in (folder.name, data.hub_config, data.hub_split) if part)
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return Source(safe, f"data.hub={data.hub}", description, None, partial(_documents, data))


def _check_folder(folder: Path, paths: list[Path]) -> None:
    """Refuses what `save_to_disk` wrote; tells that `datasets` passes over kinds of files."""
    if all((folder / name).is_file() for name in ("state.json", "dataset_info.json")):
        files = override("data.files", f"{folder}/*.arrow")
        raise ValueError(
            f"data.hub={folder} was written by `save_to_disk`, and is read as files: type "
            f"data=files data.hub=null {files}"
        )
    kinds = [kind for kind in _KINDS if any(path.name.endswith(kind) for path in paths)]
    if len(kinds) > 1:
        print(
            f"note: {folder} has files of several kinds ({', '.join(kinds)}), of which `datasets` "
            "may read one and pass over the others; data.files reads each by its kind",
            file=sys.stderr,
        )


def _documents(data: DataConfig, part: Part = WHOLE) -> Iterator[Document | LeftOut]:
    where = (
        f"data.hub={data.hub} (data.hub_config={data.hub_config or 'null'} "
        f"data.hub_split={data.hub_split})"
    )
    load = partial(_load, data, part)
    name = data.hub_split if part == WHOLE else f"{data.hub_split}:{part.number}"
    yield from table_documents(load, name, data.text_column, where, _ADVICE, data.skip_bad_records)


def _load(data: DataConfig, part: Part) -> "IterableDataset":
    """The records of a part: `datasets` shares out whole files, in their order."""
    from datasets import load_dataset

    records = load_dataset(data.hub, data.hub_config, split=data.hub_split, streaming=True)
    if part == WHOLE:
        return records
    files_of_part([1] * records.num_shards, part, f"data.hub={data.hub}")
    return records.shard(part.count, part.number, contiguous=True)
