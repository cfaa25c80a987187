"""The closing summary: counts, duplicates, what was left out; the histogram of lengths."""

import numpy as np
import pytest

from data.histogram import draw_lengths, length_counts
from data.index import Duplicates, Rejected, read_index
from data.report import summary


def documents(*lengths):
    return [[1, *[9] * (length - 2), 2] for length in lengths]


@pytest.mark.parametrize("block", [1, 2, 100])
def test_lengths_fall_into_four_bins_per_doubling(stream, monkeypatch, block):
    monkeypatch.setattr("data.histogram._BLOCK", block)
    folder = stream(documents(2, 2, 3, 4, 64, 76, 77))
    counts, tokens = length_counts(folder, read_index(folder).train)
    # 2^(25/4) = 76.1 tokens begin the 25th bin.
    assert dict(enumerate(counts[:26])) == dict.fromkeys(range(26), 0) | {4: 2, 6: 1, 8: 1} | {
        24: 2,
        25: 1,
    }
    assert tokens[[4, 6, 8, 24, 25]].tolist() == [4, 3, 4, 140, 77]
    assert counts.sum() == 7
    assert tokens.sum() == read_index(folder).train.tokens


def test_a_single_document_has_a_length(stream):
    folder = stream(documents(10))
    counts, _ = length_counts(folder, read_index(folder).train)
    assert np.flatnonzero(counts).tolist() == [13]


def test_the_histogram_is_a_picture(stream, tmp_path):
    folder = stream(documents(2, 5, 700, 700, 60))
    draw_lengths(folder, read_index(folder), tmp_path / "lengths.png")
    picture = (tmp_path / "lengths.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000


def test_the_summary_names_what_was_left_out_and_what_is_there_twice(stream):
    folder = stream(documents(5, 6))
    (folder / "documents.png").touch()
    names = [f"{number}.txt" for number in range(7)]
    index = read_index(folder).model_copy(
        update={
            "rejected": Rejected(counts={"empty": 7}, examples={"empty": names}),
            "duplicates": Duplicates(documents=2000, bytes=9000, dropped=True, examples=["b = a"]),
        }
    )
    text = summary(index, folder)
    assert "left out    7 empty: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt, ..." in text
    assert "duplicates  2,000 documents, 9,000 bytes, dropped: b = a, ..." in text
    assert f"lengths     {folder}/documents.png" in text
