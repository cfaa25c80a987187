"""What is decided over the whole corpus: the sample for the vocabulary, the cut of one document."""

import re

import numpy as np
import pytest

from data.plan import _line_start, part_folder, ranges_file, sampled_texts


@pytest.fixture
def parts(tmp_path):
    """Writes parts whose training documents are these texts; what lies between them is none."""

    def write(*texts_of_parts):
        for number, texts in enumerate(texts_of_parts):
            part_folder(tmp_path, number).mkdir()
            data = [text.encode() for text in texts]
            (part_folder(tmp_path, number) / "spool").write_bytes(b"##" + b"##".join(data))
            sizes = np.array([len(text) for text in data], dtype=np.int64)
            begins = np.cumsum(sizes + 2) - sizes
            np.save(ranges_file(tmp_path, number, "train"), np.stack([begins, sizes], axis=1))
        return tmp_path

    return write


LINES = [f"line {number} é\n" for number in range(40_000)]


def test_a_small_corpus_is_sampled_in_blocks_from_all_its_text(parts):
    texts = ["".join(LINES[i : i + 500]) for i in range(0, 10_000, 500)]
    folder = parts(texts[:7], texts[7:])
    sample = list(sampled_texts(folder, 2, wanted=50_000))
    assert 50_000 <= sum(len(block.encode()) for block in sample) < 56_000
    assert all(any(block in text for text in texts) for block in sample)
    first = [int(block.split()[1]) for block in sample]
    assert first == sorted(first)
    assert first[0] < 500
    assert first[-1] > 9_000
    everything = list(sampled_texts(folder, 2, wanted=1_000_000))
    assert "".join(everything) == "".join(texts)


def test_a_large_corpus_is_sampled_without_reading_it_all(parts, monkeypatch):
    monkeypatch.setattr("data.plan._THIN_STRETCH", 777)
    texts = ["".join(LINES[i : i + 500]) for i in range(0, len(LINES), 500)]
    folder = parts(texts[:30], texts[30:])
    sample = list(sampled_texts(folder, 2, wanted=20_000))
    assert 18_000 < sum(len(block.encode()) for block in sample) < 22_000
    assert all(any(block in text for text in texts) for block in sample)  # no half characters
    found = [re.search(r"line (\d+) é", block) for block in sample]
    first = [int(match[1]) for match in found if match]
    assert max(np.diff(first)) < len(LINES) / 10
    assert first[0] < 500
    assert first[-1] > 0.9 * len(LINES)


@pytest.mark.parametrize(
    ("text", "cut", "expected"),
    [
        ("ab\ncd\nefgh", 4, 6),  # the first line that starts behind it
        ("abcdefgh\nij", 4, 4),  # the next line starts too late
        ("aééééé", 2, 3),  # inside of a character
        ("aééééé", 3, 3),
    ],
)
def test_a_document_is_cut_at_a_line_or_else_a_character(tmp_path, text, cut, expected):
    (tmp_path / "spool").write_bytes(b"##" + text.encode() + b"\n\n\n")
    assert _line_start(tmp_path / "spool", 2, len(text.encode()), cut) == expected
