"""Where one curve falls below another, from curves that follow known laws."""

import pytest

from benchmarks.crossings import Crossing, crossing

LENGTHS = (128, 256, 512, 1024, 2048)
SOFTMAX = {n: 1e-6 * n**2 for n in LENGTHS}


@pytest.mark.parametrize("tokens", [129.0, 300.0, 512.0, 1000.0, 2047.0])
def test_curves_that_follow_powers_of_the_length_cross_where_the_powers_do(tokens):
    linear = {n: 1e-6 * tokens * n for n in LENGTHS}
    found = crossing(linear, SOFTMAX)
    assert found.tokens == pytest.approx(tokens, rel=1e-9)
    assert (found.shortest, found.longest) == (128, 2048)


def test_no_crossing_names_the_side_and_the_range():
    slower, faster = ({n: factor * SOFTMAX[n] for n in LENGTHS} for factor in (1.01, 0.99))
    assert crossing(slower, SOFTMAX) == Crossing(None, 128, 2048)
    assert crossing(faster, SOFTMAX) == Crossing(None, 128, 2048, below=True)
    assert str(crossing(slower, SOFTMAX)) == "none to 2,048"
    assert str(crossing(faster, SOFTMAX)) == "< 128"


def test_the_last_of_several_crossings_counts():
    ratios = (0.5, 2.0, 0.5, 2.0, 0.5)
    curve = {n: ratio * SOFTMAX[n] for n, ratio in zip(LENGTHS, ratios, strict=True)}
    assert crossing(curve, SOFTMAX).tokens == pytest.approx(1024 * 2**0.5)


def test_being_ahead_for_a_while_only_is_no_crossing():
    curve = {n: (0.5 if n < 2048 else 1.1) * SOFTMAX[n] for n in LENGTHS}
    assert crossing(curve, SOFTMAX) == Crossing(None, 128, 2048)


def test_being_equal_is_not_being_ahead():
    assert crossing(SOFTMAX, SOFTMAX) == Crossing(None, 128, 2048)
    curve = {n: (1.0 if n < 1024 else 0.5) * SOFTMAX[n] for n in LENGTHS}
    assert crossing(curve, SOFTMAX).tokens == 512


def test_only_lengths_that_both_have_count():
    linear = {n: 1e-6 * 600 * n for n in (64, 512, 1024)}
    found = crossing(linear, SOFTMAX)
    assert (found.tokens, found.shortest) == (pytest.approx(600), 512)
    assert crossing({64: 1.0}, SOFTMAX) is None


def test_a_crossing_is_shown_in_tokens_and_in_head_sizes():
    assert Crossing(1234.4, 128, 2048).per(64) == "1,234 (19.3 d)"
    assert Crossing(None, 128, 2048).per(64) == "none to 2,048 (32 d)"
    assert Crossing(None, 128, 2048, below=True).per(64) == "< 128 (2 d)"
