"""Exact tokens, labels, segments and texts, as `python -m data.inspect format=json` prints them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import data.inspect as inspect_command
import train as train_command
from data.index import read_index
from data.order import permutation
from data.packed import IGNORED
from data.tokenizer import Tokenizer
from tests.commands import SMALL, called, inspected
from tests.data.prepared_sets import (
    prepared,
    sparse,
    texts_of,
    windows_of,
    with_documents,
    write_records,
)

ROOT = Path(__file__).parents[2]
X = IGNORED


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A data set of 16 documents, through the command."""
    text = tmp_path_factory.mktemp("text")
    write_records(text, [5, 9, 2])
    return prepared(text / "prepared", f"{text}/*.jsonl", "tokenizer.vocab_size=288")


@pytest.fixture
def shown(folder, tmp_path):
    """Rows of the first step on these documents, by their window."""

    def rows(documents, seq_len, count, **values):
        made = with_documents(tmp_path / "made", folder, documents, **values)
        given = [f"data.seq_len={seq_len}", f"trainer.batch_tokens={seq_len * count}"]
        found = inspected("data=prepared", f"data.dir={made}", *given)
        assert sorted(row["window"] for row in found) == list(range(count))
        return sorted(found, key=lambda row: row["window"])

    return rows


def columns(row):
    return row["tokens"], row["labels"], row["segments"]


def test_the_rows_of_the_documentation(shown):
    rows = shown([[1, 10, 11, 2], [1, 20, 2], [1, 30, 31, 2]], 4, 3)
    assert [columns(row) for row in rows] == [
        ([1, 10, 11, 2], [10, 11, 2, X], [0, 0, 0, 0]),
        ([1, 20, 2, 1], [20, 2, X, 30], [0, 0, 0, 1]),
        ([30, 31, 2, 3], [31, 2, X, X], [0, 0, 0, 1]),
    ]
    assert [row["padding"] for row in rows] == [0, 0, 1]
    assert [len(row["texts"]) for row in rows] == [1, 2, 1]


def test_an_end_is_a_target_and_predicts_nothing_wherever_rows_are_cut(shown):
    rows = shown([[10, 11, 2], [20, 2], [30, 31, 32, 2]], 4, 2)
    assert [columns(row) for row in rows] == [
        ([10, 11, 2, 20], [11, 2, X, 2], [0, 0, 0, 1]),
        ([2, 30, 31, 32], [X, 31, 32, 2], [0, 1, 1, 1]),
    ]


def test_documents_that_end_with_their_row_leave_no_empty_segment(shown):
    documents = [[1, *range(10 * n, 10 * n + 6), 2] for n in (1, 2, 3)]
    for row, ids in zip(shown(documents, 8, 3), documents, strict=True):
        assert columns(row) == (ids, [*ids[1:], X], [0] * 8)
        assert row["padding"] == 0
        assert len(row["texts"]) == 1


def test_padding_with_the_id_of_the_end_hides_no_end(shown, tmp_path):
    first, second = shown([[1, *range(10, 19)], [5, 6, 2, 7, 8, 2]], 10, 2, pad_id=2)
    tokens, labels, segments = columns(second)
    assert tokens == [5, 6, 2, 7, 8, 2] + [2] * 4
    assert labels == [6, 2, 7, 8, 2] + [X] * 5
    assert segments == [0] * 6 + [1] * 4
    assert second["padding"] == 4
    assert first["labels"] == [*range(10, 19), X]
    given = ["data=prepared", f"data.dir={tmp_path}/made", "data.seq_len=10"]
    text = called(inspect_command.main, *given, "trainer.batch_tokens=20")[1]
    assert text.count("⟨eos⟩") == 2
    assert text.count("⟨pad⟩") == 1
    # Any order of reading, and each row by itself, gives the same.
    steps = [inspected(*given, "trainer.batch_tokens=10", f"step={step}") for step in (1, 2, 1)]
    assert steps[0] == steps[2]
    assert {row["window"]: columns(row) for step in steps for row in step} == {
        0: columns(first),
        1: columns(second),
    }


def test_texts_are_those_of_the_documents_and_counts_those_of_the_index(folder):
    index = read_index(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    windows = windows_of(folder, 32)
    given = ["data=prepared", f"data.dir={folder}", "data.seq_len=32"]
    rows = inspected(*given, f"trainer.batch_tokens={32 * windows}")
    tokens = [id for row in rows for id in row["tokens"]]
    assert tokens.count(index.eos_id) == tokens.count(index.bos_id) == index.train.documents
    assert tokens.count(index.pad_id) == sum(row["padding"] for row in rows)
    assert len(tokens) - tokens.count(index.pad_id) == index.train.tokens
    targets = sum(label != X for row in rows for label in row["labels"])
    assert targets == index.train.tokens - index.train.documents
    for number, row in enumerate(rows):
        assert (row["row"], row["sample"], row["epoch"]) == (number, number, 1)
        assert (row["source"], row["bucket"]) == (None, None)
        assert "".join(row["texts"]) == tokenizer.decode(row["tokens"])
        text = tokenizer.decode(id for id, s in zip(*columns(row)[::2], strict=True) if s == 0)
        assert row["texts"][0] == text
    alone = inspected(*given, f"trainer.batch_tokens={32 * windows}", "row=2")
    assert alone == [rows[2]]


def test_json_has_no_colours(folder):
    given = ["data=prepared", f"data.dir={folder}", "format=json", "color=always"]
    code, out, err = called(inspect_command.main, *given)
    assert (code, out) == (1, "")
    assert err == (
        "error: color=always and format=json are both given; JSON has no colours. Type color=auto "
        "or format=text.\n"
    )


@pytest.mark.parametrize(
    ("place", "named"),
    [
        (["world=3"], "world=3: that step has 4 rows, which are shared equally by 1, 2, 4 ranks"),
        (["world=2", "rank=2"], "rank=2: with world=2 there are ranks 0 to 1"),
        (["world=2", "row=2"], "row=2: rank 0 of 2 has rows 0 to 1"),
        (["step=1e9"], "step=1000000000: the run has steps 1 to"),
    ],
)
def test_a_place_that_there_is_not_is_refused(folder, place, named):
    given = ["data=prepared", f"data.dir={folder}", "data.seq_len=32", "trainer.batch_tokens=128"]
    for kind in ("json", "text"):
        code, out, err = called(inspect_command.main, *given, *place, f"format={kind}")
        assert (code, out) == (1, "")
        assert err.lower().startswith(f"error: {named.lower()}")
        assert err.count("\n") == 1


def test_a_reader_that_ends_early_is_no_error(folder):
    given = ["data=prepared", f"data.dir={folder}", "data.seq_len=8", "format=json"]
    shown = subprocess.Popen(
        [sys.executable, "-m", "data.inspect", *given, "trainer.batch_tokens=8e4"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert shown.stdout.readline()
    shown.stdout.close()
    assert shown.stderr.read() == b""
    assert shown.wait(60) == 1


def test_damaged_starts_of_documents_end_a_command_with_one_error(folder, tmp_path):
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    starts = np.load(damaged / "train-documents.npy")
    np.save(damaged / "train-documents.npy", starts[::-1].copy())
    given = ["data=prepared", f"data.dir={damaged}", "data.files=null"]
    for main, more in (
        (inspect_command.main, ["data.seq_len=32"]),
        (train_command.main, [*SMALL, f"run.root={tmp_path}", "run.name=some", "data.workers=1"]),
    ):
        code, _, err = called(main, *more, *given)
        assert code == 1
        (line,) = [line for line in err.splitlines() if "error" in line]
        assert line.startswith(f"error: {damaged}/train-documents.npy: the starts of documents")
        assert "Traceback" not in err


# --- large numbers


@pytest.mark.long
def test_ids_of_a_large_vocabulary_come_back(tmp_path):
    """70,000 ids: every character of the text has one, and 16 bits hold not all of them."""
    ranges = ((0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0x20000, 0x2A6DF))
    characters = [chr(code) for begin, end in ranges for code in range(begin, end)][:69_700]
    texts = ["".join(characters[i : i + 697]) for i in range(0, 69_700, 697)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "text.jsonl").write_text(lines)
    size = ["tokenizer.vocab_size=70000", "tokenizer.character_coverage=1"]
    size += ["data.validation_bytes=3000"]  # a whole document
    folder = prepared(tmp_path / "prepared", f"{tmp_path}/text.jsonl", *size)
    index = read_index(folder)
    assert (index.dtype, index.vocab_size) == ("uint32", 70_000)
    given = ["data=prepared", f"data.dir={folder}", "data.seq_len=256"]
    rows = inspected(*given, f"trainer.batch_tokens={256 * windows_of(folder, 256)}")
    found = texts_of(rows, folder)
    assert found == [text for text in texts if text in found]
    assert len(found) == index.train.documents == len(texts) - index.validation.documents
    largest = {id for row in rows for id in row["tokens"] if id >= 1 << 16}
    assert len(largest) > 4000  # 70,000 - 65,536, less the validation documents' characters

    changed = json.loads((folder / "index.json").read_text()) | {"dtype": "uint16"}
    (folder / "index.json").write_text(json.dumps(changed))
    code, _, err = called(inspect_command.main, *given)
    assert code == 1
    assert f"{folder}/index.json: dtype uint16 does not fit a vocabulary of 70000 ids" in err


def test_a_row_beyond_32_bits_is_the_right_one(folder, tmp_path):
    """Window 1,100,000 of 4,096 tokens begins at token 4,505,600,000 of a file of 9 GB."""
    seq_len, number = 4096, 1_100_000
    windows = number + 2
    huge = sparse(tmp_path / "huge", folder, windows * seq_len + 1)
    with (huge / "train-00000.bin").open("r+b") as file:
        file.seek(2 * number * seq_len)
        np.array([41, 42, 43], dtype="<u2").tofile(file)
    sample = int(np.flatnonzero(permutation(np.arange(windows), windows, (0, 0)) == number)[0])
    given = ["data=prepared", f"data.dir={huge}", f"data.seq_len={seq_len}"]
    given += [f"trainer.batch_tokens={seq_len}", "trainer.tokens=1e10"]
    (row,) = inspected(*given, f"step={sample + 1}")
    assert (row["sample"], row["window"]) == (sample, number)
    assert row["tokens"] == [41, 42, 43] + [0] * (seq_len - 3)
    assert row["labels"][:3] == [42, 43, 0]
    (other,) = inspected(*given, f"step={number + 1}")
    assert other["sample"] == number
    assert other["tokens"] == [0] * seq_len
