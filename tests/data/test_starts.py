"""Starts of documents inside a stretch of a stream, found in a file without reading all of it."""

import pickle
import random

import numpy as np
import pytest

from data import starts as module
from data.starts import DocumentStarts


@pytest.fixture
def opened(tmp_path):
    """Writes the starts of documents of these sizes."""

    def make(sizes):
        path = tmp_path / "starts.npy"
        np.save(path, np.cumsum([0, *sizes[:-1]], dtype=np.int64))
        return DocumentStarts(path, sum(sizes))

    return make


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("block", [2, 3, 512])
def test_look_ups_in_any_order_equal_a_walk(monkeypatch, opened, seed, block):
    """Sizes differ by region, so that guesses by proportion are wrong; some are 0."""
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module, "_MOST_KNOWN", 20)
    source = random.Random(seed)
    sizes = [
        source.choice(some)
        for some in ([1, 2], [0, 0, 5], [1000, 3], [0, 1], [40])
        for _ in range(source.randrange(1, 60))
    ]
    starts = opened(sizes)
    everything = np.cumsum([0, *sizes[:-1]])
    for turn in range(300):
        begin = source.randrange(sum(sizes))
        end = begin + source.choice([0, 1, 7, 100, 5000])
        expected = everything[(everything >= begin) & (everything < end)]
        assert starts.inside(begin, end).tolist() == expected.tolist()
        starts.check(begin, max(end, begin + 1))
        if turn == 150:
            starts = pickle.loads(pickle.dumps(starts))
    assert block == 512 or 0 < len(starts._known) <= 20


def test_what_was_read_is_a_guide_to_what_follows(monkeypatch, opened):
    source = random.Random(0)
    starts = opened([int(source.lognormvariate(3, 1.5)) for _ in range(200_000)])
    read, reads = DocumentStarts._read, []
    monkeypatch.setattr(
        DocumentStarts, "_read", lambda self, *a: (reads.append(a), read(self, *a))[1]
    )
    counts = []
    for _ in range(2):
        reads.clear()
        for _ in range(500):
            begin = source.randrange(starts._tokens - 100)
            starts.inside(begin, begin + 100)
        counts.append(len(reads))
    assert counts[0] < 1.6 * 500
    assert counts[1] < 1.1 * 500


@pytest.mark.parametrize("documents", [1, 2, 5, 100])
def test_blocks_hold_all_starts_and_the_end(opened, documents):
    sizes = [3, 0, 4, 9, 1, 1]
    starts = opened(sizes)
    blocks = [block.tolist() for block in starts.blocks(documents)]
    assert [a for block in blocks for a in block[:-1]] == [0, 3, 3, 7, 16, 17]
    assert [block[-1] for block in blocks[:-1]] == [block[0] for block in blocks[1:]]
    assert blocks[-1][-1] == 18
    assert starts.count == 6


def test_a_file_that_ends_early_is_refused(opened):
    starts = opened([5] * 2000)
    assert starts.count == 2000
    with starts._path.open("r+b") as file:
        file.truncate(8 * 1000)
    with pytest.raises(ValueError, match=r"starts\.npy: it ends before its last start"):
        starts.inside(9000, 9100)
    with pytest.raises(ValueError, match=r"starts\.npy: it ends before its last start"):
        list(starts.blocks(300))
