"""Exact duplicates: counted always, dropped when asked, the first one kept."""

import json

import numpy as np
import pytest

from data.duplicates import repeated
from data.index import read_index
from data.prepare import prepare
from data.report import summary
from tests.data.test_prepare import documents_of


def test_every_later_copy_is_found_with_the_first_one():
    rows = [[5, 1], [7, 2], [5, 1], [5, 2], [7, 2], [5, 1], [2**64 - 1, 0]]
    again, first = repeated(np.array(rows, dtype=np.uint64))
    assert again.tolist() == [2, 4, 5]
    assert first.tolist() == [0, 1, 0]


def test_many_random_hashes_are_grouped_as_a_dictionary_groups_them():
    rows = np.random.default_rng(0).integers(0, 4, (300, 2)).astype(np.uint64)
    seen: dict[tuple, int] = {}
    expected = []
    for number, row in enumerate(map(tuple, rows.tolist())):
        if row in seen:
            expected.append((number, seen[row]))
        seen.setdefault(row, number)
    again, first = repeated(rows)
    assert list(zip(again.tolist(), first.tolist(), strict=True)) == expected


def test_no_documents_have_no_duplicates():
    assert [len(part) for part in repeated(np.zeros((0, 2), dtype=np.uint64))] == [0, 0]


@pytest.fixture
def prepared(tmp_path, data_config, tokenizer_config):
    """Thirty documents, of which numbers 10 to 14 are copies of 3."""
    texts = [f"document {n} " + "words and more " * (n + 3) for n in range(30)]
    texts[10:15] = [texts[3]] * 5
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))

    def make(drop):
        data = data_config(
            files=f"{tmp_path}/a.jsonl", drop_duplicates=drop, seq_len=16, validation_bytes=1000
        )
        return prepare(data, tokenizer_config(vocab_size=290), progress=False), texts

    return make


def test_duplicates_are_counted_and_kept(prepared):
    folder, texts = prepared(drop=False)
    found = read_index(folder).duplicates
    assert (found.documents, found.bytes) == (5, 5 * len(texts[3]))
    assert found.examples == [f"a.jsonl:{n + 1} = a.jsonl:4" for n in range(10, 15)]
    assert sorted(documents_of(folder, "train") + documents_of(folder, "validation")) == sorted(
        texts
    )
    text = summary(read_index(folder), folder)
    assert f"duplicates  5 documents, {5 * len(texts[3])} bytes, kept; data.drop_dup" in text


def test_dropped_duplicates_leave_the_first(prepared):
    kept, texts = prepared(drop=False)
    folder, _ = prepared(drop=True)
    assert folder != kept
    train, validation = documents_of(folder, "train"), documents_of(folder, "validation")
    left = list(dict.fromkeys(texts))
    assert sorted(train + validation) == sorted(left)
    assert train == [text for text in left if text in train]
    found = read_index(folder).duplicates
    assert found.dropped
    assert found.documents == 5
    assert "dropped: a.jsonl:11 = a.jsonl:4" in summary(read_index(folder), folder)
