"""The validation split: whole families, enough text, independent of the order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.split import assign, family_key


@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=80),
    wanted=st.integers(1, 2000),
    families=st.integers(1, 40),
)
def test_families_stay_whole_and_both_sides_get_text(sizes, wanted, families):
    keys = np.array([family_key(0, str(i % families)) for i in range(len(sizes))], dtype=np.uint64)
    sizes = np.array(sizes)
    result = assign(keys, sizes, wanted)
    for key in np.unique(keys):
        assert len(set(result.validation[keys == key].tolist())) == 1
    chosen = int(sizes[result.validation].sum())
    total = int(sizes.sum())
    target = wanted if total >= 4 * wanted else max(1, total // 10)
    if result.cut is None:
        assert target / 2 <= chosen <= 3 * target
        assert chosen < total
    else:
        document, byte = result.cut
        assert chosen == 0
        assert sizes[document] == sizes.max()
        assert sizes[document] / 2 <= byte <= sizes[document]


def test_enough_small_documents_reach_the_wanted_size():
    keys = np.array([family_key(0, str(i)) for i in range(1000)], dtype=np.uint64)
    result = assign(keys, np.full(1000, 10), 1000)
    assert result.validation.sum() == 100
    assert result.notes == []


def test_a_text_that_is_trained_on_in_a_copy_is_told():
    keys = [family_key(0, name) for name in ("a", "b", "b")]
    told = assign(np.array(keys, dtype=np.uint64), np.array([5, 900, 900]), 100).notes
    assert told[-1].startswith("The longest document has 1 others with the same text")
    told = assign(np.array(keys[:2], dtype=np.uint64), np.array([5, 900]), 100).notes
    assert len(told) == 1
    assert "the end of the longest one is the validation document" in told[0]


def test_a_large_family_is_never_held_out():
    for seed in range(20):
        names = ["big", *map(str, range(99))]
        keys = np.array([family_key(seed, name) for name in names], dtype=np.uint64)
        result = assign(keys, np.array([300] + [10] * 99), 100)
        assert not result.validation[0]
        assert result.validation.sum() == 10


def test_the_choice_follows_the_document_not_its_place_and_changes_with_the_seed():
    names = [str(i) for i in range(200)]

    def held_out(names, seed):
        keys = np.array([family_key(seed, name) for name in names], dtype=np.uint64)
        result = assign(keys, np.full(len(names), 10), 100)
        return {name for name, chosen in zip(names, result.validation, strict=True) if chosen}

    assert held_out(names, 0) == held_out(names[::-1], 0)
    assert held_out(names, 0) != held_out(names, 1)


@pytest.mark.parametrize("sizes", [[1000], [1000, 5], [400, 400, 400]])
def test_a_corpus_of_few_documents_holds_out_the_end_of_the_longest(sizes):
    keys = np.array([family_key(0, str(i)) for i in range(len(sizes))], dtype=np.uint64)
    result = assign(keys, np.array(sizes), 100_000)
    assert result.cut == (0, sizes[0] - sum(sizes) // 10)
    assert "longest" in result.notes[1]
