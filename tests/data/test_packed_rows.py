"""Packed rows: labels, segments, padding, shards, long streams."""

import random

import numpy as np
import pytest
import torch

from data.index import Shard, SplitIndex
from data.packed import IGNORED, PackedSplit


def rows(folder, seq_len):
    split = PackedSplit(folder, "train", seq_len)
    return [{name: row.tolist() for name, row in split[i].items()} for i in range(len(split))]


def test_the_first_token_of_a_document_is_no_target_and_its_end_is(stream):
    first, second = rows(stream([[10, 11, 2], [20, 2], [30, 31, 32, 2]]), 4)
    assert first["tokens"] == [10, 11, 2, 20]
    assert first["labels"] == [11, 2, IGNORED, 2]
    assert first["segments"] == [0, 0, 0, 1]
    assert second["tokens"] == [2, 30, 31, 32]
    assert second["labels"] == [IGNORED, 31, 32, 2]
    assert second["segments"] == [0, 1, 1, 1]


def test_documents_as_long_as_a_row_give_one_segment_per_row(stream):
    documents = [[10 * d + i for i in range(8)] for d in range(1, 4)]
    for i, row in enumerate(rows(stream(documents), 8)):
        assert row["tokens"] == documents[i]
        assert row["segments"] == [0] * 8
        assert row["labels"] == [*documents[i][1:], IGNORED]


def test_padding_that_equals_the_end_token_hides_no_target(stream):
    (row,) = rows(stream([[5, 6, 2, 7, 8, 2]], pad_id=2), 10)
    assert row["tokens"] == [5, 6, 2, 7, 8, 2, 2, 2, 2, 2]
    assert row["labels"] == [6, 2, 7, 8, 2] + [IGNORED] * 5
    assert row["segments"] == [0] * 6 + [1] * 4


def test_rows_do_not_depend_on_the_order_they_are_read_in(stream):
    split = PackedSplit(stream([[5, 6, 2, 7, 8, 2, 9], [1, 2, 3]]), "train", 6)
    for order in ([0, 1, 0], [1, 0, 1]):
        fetched = [split[i] for i in order]
        fetched[1]["labels"].fill_(7)  # changing one in place changes no other
        for name, row in fetched[0].items():
            assert torch.equal(row, fetched[2][name])
            assert torch.equal(row, split[order[0]][name])
            assert row.dtype == torch.int64


def oracle(documents, seq_len, pad_id=3):
    """Rows computed token by token."""
    flat = [(token, d, i) for d, ids in enumerate(documents) for i, token in enumerate(ids)]
    result = []
    for begin in range(0, len(flat) - 1, seq_len):
        row = {"tokens": [], "labels": [], "segments": []}
        segment, last = -1, None
        for p in range(begin, begin + seq_len):
            token, document, _ = flat[p] if p < len(flat) else (pad_id, None, 0)
            if p == begin or document != last:
                segment += 1
            last = document
            target = p + 1 < len(flat) and flat[p + 1][2] > 0
            row["tokens"].append(token)
            row["labels"].append(flat[p + 1][0] if target else IGNORED)
            row["segments"].append(segment)
        result.append(row)
    return result


@pytest.mark.parametrize("seq_len", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("shard_tokens", [7, 1000])
def test_rows_equal_the_token_by_token_oracle(stream, seq_len, shard_tokens):
    source = random.Random(seq_len)
    documents = [
        [source.randrange(100) for _ in range(source.choice([1, 2, 3, 10, 60]))] for _ in range(30)
    ]
    folder = stream(documents, shard_tokens=shard_tokens)
    expected = oracle(documents, seq_len)
    assert rows(folder, seq_len) == expected
    split = PackedSplit(folder, "train", seq_len)
    for i, row in enumerate(expected):
        assert split.targets(i) == sum(label != IGNORED for label in row["labels"])
    total = sum(split.targets(i) for i in range(len(split)))
    assert total == sum(len(ids) - 1 for ids in documents)


def test_row_numbers_outside_are_refused(stream):
    split = PackedSplit(stream([[1, 2, 3]]), "train", 2)
    for i in (-1, len(split)):
        with pytest.raises(IndexError, match="outside"):
            split[i]


def test_stream_without_a_row_is_refused(stream):
    with pytest.raises(ValueError, match="1 tokens; no row"):
        PackedSplit(stream([[1]]), "train", 4)


def test_rows_far_beyond_32_bit_offsets(tmp_path, completed):
    """Token 4 505 600 000 of a sparse 9 GB file; no disk space is used."""
    seq_len, number = 4096, 1_100_000
    place = number * seq_len
    tokens = place + 2 * seq_len
    with (tmp_path / "train-00000.bin").open("wb") as file:
        file.truncate(2 * tokens)
        file.seek(2 * place)
        np.array([41, 42, 43, 44], dtype="<u2").tofile(file)
    np.save(tmp_path / "train-documents.npy", np.array([0, place + 2], dtype=np.int64))
    shard = Shard(file="train-00000.bin", tokens=tokens, sha256="")
    train = SplitIndex(
        tokens=tokens,
        documents=2,
        bytes=1,
        shards=[shard],
        offsets_file="train-documents.npy",
        offsets_sha256="",
    )
    completed(tmp_path, 100, train, train)
    row = PackedSplit(tmp_path, "train", seq_len)[number]
    assert row["tokens"][:5].tolist() == [41, 42, 43, 44, 0]
    assert row["labels"][:4].tolist() == [42, IGNORED, 44, 0]
    assert row["segments"][:4].tolist() == [0, 0, 1, 1]
