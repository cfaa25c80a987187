"""The index: damaged or foreign folders are refused, and the file at fault is named."""

import json
import shutil

import numpy as np
import pytest

from data.index import read_index, token_dtype, verify_checksums
from data.packed import PackedSplit
from data.report import summary
from data.writer import SplitWriter

DOCUMENTS = [[1, 10, 11, 2], [1, 12, 2]]


def test_large_ids_survive_in_32_bits(stream):
    ids = [0, 65_535, 65_536, 69_999]
    folder = stream([ids], vocab_size=70_000)
    assert read_index(folder).dtype == "uint32"
    assert PackedSplit(folder, "train", 4)[0]["tokens"].tolist() == ids


@pytest.mark.parametrize(("size", "name"), [(65_536, "uint16"), (65_537, "uint32")])
def test_the_vocabulary_picks_the_type(size, name):
    assert token_dtype(size).name == name


def test_ids_outside_the_vocabulary_are_never_written(tmp_path):
    writer = SplitWriter(tmp_path, "train", 65_536, 1000)
    for ids in ([65_536], [-1], [3, 70_000]):
        with pytest.raises(ValueError, match="outside the vocabulary of 65536"):
            writer.add(ids)


def change(folder, **values):
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | values))


def truncate(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: change(f, dtype="uint16"), r"index\.json: dtype uint16 does not fit"),
        (lambda f: change(f, dtype="float32"), r"index\.json: dtype: "),
        (
            lambda f: change(f, vocab_size=100),
            r"index\.json: .*uint32 does not fit a vocabulary of 100",
        ),
        (lambda f: change(f, format_version=7), r"index\.json: format version 7"),
        (lambda f: change(f, surprise=1), r"index\.json: surprise: "),
        (lambda f: change(f, fingerprint="0"), r"index\.json: .*fingerprint 0 is not that"),
        (lambda f: truncate(f, "index.json"), r"index\.json: "),
        (
            lambda f: truncate(f, "train-00000.bin"),
            r"train-00000\.bin: it has 27 bytes, but 7 uint32",
        ),
        (lambda f: (f / "train-00000.bin").unlink(), r"train-00000\.bin: it is missing"),
        (lambda f: (f / "train-documents.npy").unlink(), r"train-documents\.npy: it is missing"),
        (lambda f: truncate(f, "train-documents.npy"), r"train-documents\.npy: "),
        (lambda f: (f / "train-documents.npy").write_bytes(b""), r"train-documents\.npy: "),
        (
            lambda f: (f / "train-documents.npy").write_bytes(b"\x93NUMPY\x01\x00\x02\x00{("),
            r"train-documents\.npy: ",
        ),
        (
            lambda f: np.save(f / "train-documents.npy", np.array([0, 4], dtype=np.int32)),
            r"train-documents\.npy: it holds int32",
        ),
        (
            lambda f: (f / "tokenizer.model").write_bytes(b"other"),
            r"tokenizer\.model: it is missing or",
        ),
    ],
)
def test_damage_is_found_and_named(stream, damage, message):
    folder = stream(DOCUMENTS, vocab_size=70_000)
    read_index(folder)
    damage(folder)
    with pytest.raises(ValueError, match=message) as error:
        read_index(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("name", ["validation-00000.bin", "train-documents.npy"])
def test_changed_contents_are_found_by_their_checksum(stream, name):
    folder = stream(DOCUMENTS)
    index = read_index(folder)
    verify_checksums(folder, index)
    contents = bytearray((folder / name).read_bytes())
    contents[-1] ^= 1
    (folder / name).write_bytes(contents)
    read_index(folder)
    with pytest.raises(ValueError, match=rf"{name}: its contents changed"):
        verify_checksums(folder, index)


def test_fingerprint_covers_tokens_and_borders(stream):
    base = read_index(stream(DOCUMENTS, "a")).fingerprint
    assert read_index(stream(DOCUMENTS, "b")).fingerprint == base
    assert read_index(stream([[1, 10, 11, 2, 1], [12, 2]], "c")).fingerprint != base
    assert read_index(stream([[1, 10, 13, 2], [1, 12, 2]], "d")).fingerprint != base


def test_a_moved_folder_stays_valid(stream, tmp_path):
    folder = stream(DOCUMENTS)
    moved = shutil.move(folder, tmp_path / "moved")
    assert PackedSplit(moved, "train", 3)[0]["tokens"].tolist() == [1, 10, 11]


def test_summary_holds_the_counts(stream):
    folder = stream(DOCUMENTS)
    text = summary(read_index(folder), folder)
    assert str(folder) in text
    assert text.splitlines()[1].split()[:3] == ["train", "2", "7"]
