"""Shares of sources at every prefix, exactly, and as far as sample numbers go."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.mixture import MOST_SLOTS, Interleave, whole_shares

SHARES = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


@settings(max_examples=60, deadline=None)
@given(shares=SHARES)
def test_every_prefix_has_the_shares_within_less_than_one_sample(shares):
    total = sum(shares)
    source, number = Interleave(shares).of(np.arange(2 * total + 3))
    for s, share in enumerate(shares):
        given_by_now = np.cumsum(source == s)
        wanted = np.arange(1, len(source) + 1) * share
        assert (np.abs(given_by_now * total - wanted) < total).all()
        # Every sample of a source once, in order.
        assert number[source == s].tolist() == list(range(int(given_by_now[-1])))


@settings(max_examples=60, deadline=None)
@given(shares=SHARES, samples=st.integers(0, 2**60), data=st.data())
def test_any_sample_is_found_without_those_before_it(shares, samples, data):
    mixture = Interleave(shares)
    counts = mixture.counts(samples)
    assert sum(counts) == samples
    source, number = mixture.of(np.array([samples]))
    assert number[0] == counts[source[0]]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([0.7, 0.3], [7, 3]),
        ([3.0, 1.0], [3, 1]),
        ([0.1, 0.2, 0.7], [1, 2, 7]),
        ([1.0, 0.0], [1, 0]),
        ([Fraction(10**11), Fraction(10**11)], [1, 1]),
        ([1e-05, 1.0], [1, 100_000]),
    ],
)
def test_weights_are_taken_as_they_are_written(weights, shares):
    got = whole_shares(weights)
    if sum(shares) <= MOST_SLOTS:
        assert got == shares
    else:
        assert got == [1, MOST_SLOTS - 1]


@pytest.mark.parametrize(
    "weights", [[1.0, 0.25, 0.17093959660520855], [0.7071067811865476, 3.14159265], [2.5e-5, 1.0]]
)
def test_weights_of_many_digits_are_met_within_one_sample_and_one_in_65536(weights):
    """Far less than one sample per 1,000 at every prefix."""
    samples = 150_000
    source, _ = Interleave(whole_shares(weights)).of(np.arange(samples))
    prefix = np.arange(1, samples + 1)
    for s, weight in enumerate(weights):
        error = np.abs(np.cumsum(source == s) - prefix * (weight / sum(weights)))
        assert (error < 1 + prefix / MOST_SLOTS).all()


def test_a_weight_too_small_to_be_kept_is_refused():
    with pytest.raises(ValueError, match="weight 1 is less than 1/65536"):
        whole_shares([1.0, 1e-7])
