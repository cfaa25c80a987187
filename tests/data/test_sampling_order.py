"""Order: a keyed bijection, epochs without loss, batches that do not depend on the ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order import batch_samples, permutation, window


@settings(max_examples=150, deadline=None)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 2**40))
def test_permutation_is_a_bijection(size, seed, epoch):
    image = permutation(np.arange(size), size, (seed, epoch))
    assert image.dtype == np.int64
    assert np.array_equal(np.sort(image), np.arange(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097])
def test_permutation_is_a_bijection_around_powers_of_two(size):
    assert sorted(permutation(np.arange(size), size, (1, 2)).tolist()) == list(range(size))


@settings(max_examples=100, deadline=None)
@given(size=st.integers(2**32, 2**60), data=st.data())
def test_permutation_of_huge_sizes_stays_inside_and_is_injective(size, data):
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    image = permutation(np.array(index), size, (0, 0))
    assert len(set(image.tolist())) == len(index)
    assert image.min() >= 0
    assert image.max() < size


def test_permutation_of_single_numbers_equals_that_of_the_array():
    whole = permutation(np.arange(100).reshape(4, 25), 100, (3, 1))
    single = [int(permutation(np.int64(i), 100, (3, 1))) for i in range(100)]
    assert whole.shape == (4, 25)
    assert whole.ravel().tolist() == single


def test_seed_and_epoch_change_the_permutation():
    images = [permutation(np.arange(50), 50, key).tolist() for key in [(0, 0), (0, 1), (1, 0)]]
    assert images[0] != images[1] != images[2] != images[0]


def test_every_window_is_equally_likely_at_every_place():
    """Chi-squared over 400 epochs of 20 windows: mean 361 at 361 degrees of freedom, sigma 27."""
    counts = np.zeros((20, 20))
    for epoch in range(400):
        counts[np.arange(20), permutation(np.arange(20), 20, (5, epoch))] += 1
    chi_squared = ((counts - 20) ** 2 / 20).sum()
    assert abs(chi_squared - 361) < 5 * 27


def test_neighbours_are_not_kept_together():
    image = permutation(np.arange(10_000), 10_000, (0, 0))
    assert np.abs(np.diff(image)).mean() == pytest.approx(10_000 / 3, rel=0.05)
    assert (np.diff(image) == 1).sum() < 10


def test_order_is_pinned():
    """The order is a promise to runs that continue: it may only change with the format version."""
    epoch, index = window(np.arange(12), 5, seed=0)
    assert epoch.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
    assert index.tolist() == [2, 0, 4, 1, 3, 0, 2, 1, 3, 4, 0, 2]


@pytest.mark.parametrize("start", [0, 3, 18, 20, 21])
def test_every_epoch_holds_every_window_once_wherever_a_run_continues(start):
    """Also the epochs after one that was entered in the middle."""
    samples = np.arange(start, 80)
    epoch, index = window(samples, 20, seed=4)
    whole_epoch, whole_index = window(np.arange(80), 20, seed=4)
    assert np.array_equal(epoch, whole_epoch[start:])
    assert np.array_equal(index, whole_index[start:])
    for number in range(4):
        expected = 20 - max(0, min(20, start - 20 * number))
        assert len(set(index[epoch == number].tolist())) == expected


def test_sample_numbers_beyond_32_bits():
    size = 3_000_000_000
    epoch, index = window(np.array([5 * size + 7, 5 * size + 8]), size, seed=0)
    assert epoch.tolist() == [5, 5]
    assert index[0] != index[1]


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_global_batch_is_the_same_for_any_number_of_ranks(world):
    for step in (0, 1, 2**40):
        parts = [batch_samples(step, 6, rank, world) for rank in range(world)]
        assert np.concatenate(parts).tolist() == list(range(step * 6, step * 6 + 6))


def test_batch_that_ranks_cannot_share_is_refused():
    with pytest.raises(ValueError, match=r"8 rows cannot be shared equally by 3 ranks.*multiple"):
        batch_samples(0, 8, 0, 3)
    with pytest.raises(ValueError, match="Rank 3 is outside"):
        batch_samples(0, 9, 3, 3)


def test_places_outside_the_data_are_refused():
    with pytest.raises(ValueError, match=r"outside \[0, 10\)"):
        permutation(np.array([3, 10]), 10, (0, 0))
    with pytest.raises(ValueError, match="start at 0"):
        window(np.array([-1]), 10, 0)
