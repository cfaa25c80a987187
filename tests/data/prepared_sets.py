"""Data sets prepared by the command, and copies of them that hold other token ids."""

import json
import shutil
from pathlib import Path

import numpy as np

import data.prepare as prepare_command
from data.index import Shard, SplitIndex, contents_fingerprint, read_index
from data.tokenizer import Tokenizer
from data.writer import SplitWriter
from tests.commands import called

ID = "<{:03d}>"
"""How a text names itself, so that it is known wherever it turns up."""


def write_records(folder: Path, counts: list[int], text: str = "word {} of many\n") -> None:
    """JSON lines files with that many documents, numbered through and of different lengths."""
    number = 0
    for file, count in enumerate(counts):
        lines = []
        for _ in range(count):
            body = "".join(text.format(i * number % 89) for i in range(1 + number * 7 % 12))
            lines.append(json.dumps({"text": ID.format(number) + body}) + "\n")
            number += 1
        (folder / f"part{file}.jsonl").write_text("".join(lines))


def prepared(root: Path, files: str, *overrides: str) -> Path:
    """What `python -m data.prepare` makes of these files."""
    before = set(root.iterdir()) if root.exists() else set()
    given = ["data=files", f"data.files={files}", f"data.root={root}"]
    small = ["data.seq_len=32", "data.validation_bytes=100"]
    code, _, err = called(prepare_command.main, *given, *small, *overrides)
    assert code == 0, err
    (folder,) = set(root.iterdir()) - before
    return folder


def with_documents(folder: Path, source: Path, documents: list[list[int]], **values: int) -> Path:
    """Makes `folder`, a copy of the data set `source` whose training documents are these ids.

    values: other values of the index, such as pad_id.
    """
    size = read_index(source).vocab_size
    _copy_without_training_text(source, folder)
    writer = SplitWriter(folder, "train", size, 1000)
    for ids in documents:
        writer.add(ids)
    _complete(folder, writer.close(text_bytes=1), **values)
    return folder


def sparse(folder: Path, source: Path, tokens: int) -> Path:
    """Makes `folder`, a copy of `source` with one training document of that many tokens.

    Its file takes no disk space until something is written into it.
    """
    index = read_index(source)
    _copy_without_training_text(source, folder)
    with (folder / "train-00000.bin").open("wb") as file:
        file.truncate(np.dtype(index.dtype).itemsize * tokens)
    np.save(folder / "train-documents.npy", np.zeros(1, dtype=np.int64))
    shard = Shard(file="train-00000.bin", tokens=tokens, sha256="")
    train = index.train.model_copy(update={"tokens": tokens, "documents": 1, "shards": [shard]})
    _complete(folder, train)
    return folder


def texts_of(rows: list[dict], folder: Path) -> list[str]:
    """The documents that rows of inspected steps show; the rows must be every window once."""
    rows = sorted(rows, key=lambda row: row["window"])
    assert [row["window"] for row in rows] == list(range(len(rows)))
    ids = [id for row in rows for id in row["tokens"][: len(row["tokens"]) - row["padding"]]]
    index = read_index(folder)
    if len(ids) == index.train.tokens - 1:  # full rows: the last token is a label alone
        ids.append(rows[-1]["labels"][-1])
    starts = np.load(folder / index.train.offsets_file).tolist()
    assert len(ids) == index.train.tokens
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    ends = [*starts[1:], len(ids)]
    return [tokenizer.decode(ids[a:b]) for a, b in zip(starts, ends, strict=True)]


def windows_of(folder: Path, seq_len: int) -> int:
    """Rows of an epoch."""
    return -(-(read_index(folder).train.tokens - 1) // seq_len)


def _copy_without_training_text(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("train-*"))


def _complete(folder: Path, train: SplitIndex, **values: int) -> None:
    index = json.loads((folder / "index.json").read_text())
    names = SplitIndex.model_fields
    validation = SplitIndex(**{name: index["validation"][name] for name in names})
    fingerprint = contents_fingerprint(index["tokenizer_fingerprint"], train, validation)
    changes = {"train": train.model_dump(), "fingerprint": fingerprint, **values}
    (folder / "index.json").write_text(json.dumps(index | changes))
