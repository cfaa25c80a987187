"""Windows by the length of the document in their middle, found by number."""

import random

import numpy as np
import pytest

from data import lengths
from data.lengths import LengthBuckets, names


@pytest.mark.parametrize("length", [1, 4, 7, 64])
@pytest.mark.parametrize("block", [3, 4096])
def test_windows_are_those_of_a_walk_over_the_documents(monkeypatch, length, block):
    monkeypatch.setattr(lengths, "BLOCK", block)
    monkeypatch.setattr(lengths, "_CHUNK", 5)
    source = random.Random(length)
    sizes = [source.choice([1, 2, 3, 9, 10, 50, 200]) for _ in range(60)]
    bounds = [3, 10, 60, 1000]
    owner = [size for size in sizes for _ in range(size)]
    windows = -(-(len(owner) - 1) // length)
    expected = []
    for i in range(windows):
        size = owner[min(i * length + length // 2, len(owner) - 1)]
        expected.append(sum(size >= bound for bound in bounds))
    starts = np.cumsum([0, *sizes[:-1]])
    buckets = LengthBuckets(starts, len(owner), length, windows, bounds)
    assert buckets.sizes == [expected.count(b) for b in range(5)]
    for b in range(5):
        found = [buckets.window(b, n) for n in range(buckets.sizes[b])]
        assert found == [i for i, bucket in enumerate(expected) if bucket == b]


def test_buckets_are_named_by_the_lengths_in_them():
    assert list(names([4096, 32768])) == ["below 4,096", "4,096 to 32,767", "32,768 and more"]
