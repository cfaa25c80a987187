"""Rows of multi-query associative recall: hand-checked, and what every row has to hold."""

import numpy as np
import pytest

from data.mqar import IGNORED, Recall, rows

FULL = Recall(length=16, pairs=4, vocab_size=20)
ROOMY = Recall(length=64, pairs=5, vocab_size=40)


def looked_up(tokens: np.ndarray) -> np.ndarray:
    """What followed the last earlier copy of each token, or -1: a perfect memory."""
    found = np.full_like(tokens, -1)
    for row, answers in zip(tokens, found, strict=True):
        after: dict[int, int] = {}
        for t, token in enumerate(row):
            answers[t] = after.get(token, -1)
            if t:
                after[row[t - 1]] = token
    return found


@pytest.mark.parametrize("task", [FULL, ROOMY, Recall(64, 5, 40, random_fill=False)])
def test_every_key_is_asked_once_and_its_label_is_the_value_that_followed_it(task):
    tokens, labels = rows(task, seed=3, index=np.arange(50))
    assert tokens.shape == labels.shape == (50, task.length)
    assert tokens.dtype == labels.dtype == np.int64
    half = task.vocab_size // 2
    for row, answers in zip(tokens, labels, strict=True):
        keys, values = row[: 2 * task.pairs : 2], row[1 : 2 * task.pairs : 2]
        assert len(set(keys)) == len(set(values)) == task.pairs
        assert ((keys > 0) & (keys < half)).all()
        assert ((values >= half) & (values < task.vocab_size)).all()
        asked = np.flatnonzero(answers != IGNORED)
        assert sorted(row[asked]) == sorted(keys)
        assert (asked >= 2 * task.pairs).all()
        assert (asked % 2 == 0).all()
        value_of = dict(zip(keys, values, strict=True))
        assert [value_of[key] for key in row[asked]] == list(answers[asked])
        assert np.isin(row, keys).sum() == 2 * task.pairs  # never between the questions


def test_a_row_checked_by_hand():
    tokens, labels = rows(Recall(length=8, pairs=2, vocab_size=6), seed=0, index=np.array([0]))
    # Keys are 1 and 2, values 3 to 5; both slots are taken, so that only their order is drawn.
    (k1, v1, k2, v2, *rest), answers = tokens[0].tolist(), labels[0].tolist()
    assert {k1, k2} == {1, 2}
    assert v1 != v2
    assert {v1, v2} < {3, 4, 5}
    assert rest[0] + rest[2] == 3
    assert {rest[1], rest[3]} <= {0, 3, 4, 5}
    expected = [v1, v2] if rest[0] == k1 else [v2, v1]
    assert answers == [*4 * [IGNORED], expected[0], IGNORED, expected[1], IGNORED]


def test_rows_follow_from_seed_and_number_alone():
    tokens, labels = rows(ROOMY, 7, np.arange(40))
    some = np.array([31, 2, 17])
    again = rows(ROOMY, 7, some)
    assert np.array_equal(again[0], tokens[some])
    assert np.array_equal(again[1], labels[some])
    assert len({row.tobytes() for row in tokens}) == 40
    other = rows(ROOMY, 8, np.arange(40))[0]
    assert not {row.tobytes() for row in tokens} & {row.tobytes() for row in other}


def test_a_perfect_memory_answers_everything_and_a_guess_hardly_anything():
    tokens, labels = rows(ROOMY, 1, np.arange(400))
    asked = labels != IGNORED
    assert (looked_up(tokens)[asked] == labels[asked]).all()
    guesses = np.random.default_rng(0).integers(20, 40, size=labels.shape)
    right = (guesses[asked] == labels[asked]).mean()  # of 2,000 questions: ± 0.005
    assert right == pytest.approx(1 / 20, abs=0.02)


def test_without_random_tokens_all_else_is_token_0():
    tokens, labels = rows(Recall(64, 5, 40, random_fill=False), 1, np.arange(20))
    assert (tokens[:, 10:][labels[:, 10:] == IGNORED] == 0).all()
    filled = rows(ROOMY, 1, np.arange(20))
    assert np.array_equal(filled[1], labels)
    other = filled[0][:, 10:][labels[:, 10:] == IGNORED]
    assert set(other) == set(range(40))  # the keys of other rows, token 0 and values among them


def test_distances_of_questions_follow_the_power_law():
    task = Recall(length=42, pairs=1, vocab_size=8)  # 20 slots, one of which is drawn
    labels = rows(task, 0, np.arange(20_000))[1]
    slots = (np.nonzero(labels != IGNORED)[1] - 2) // 2
    weights = np.arange(1, 21) ** -0.99
    expected = weights / weights.sum()
    assert np.bincount(slots, minlength=20) / 20_000 == pytest.approx(expected, abs=0.015)
    assert expected[0] > 0.25  # far outside of what equal shares would be


def test_slots_are_drawn_one_after_the_other_without_replacement():
    # Three slots with weights w: the first key gets one of them, the second one of the others.
    task = Recall(length=10, pairs=2, vocab_size=8, power=1e-9)
    tokens, labels = rows(task, 5, np.arange(20_000))
    slot = np.array([np.flatnonzero(row[4::2] == row[0])[0] for row in tokens])
    assert np.bincount(slot) / 20_000 == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.015)
    assert ((labels != IGNORED).sum(axis=1) == 2).all()
    second = np.array([np.flatnonzero(row[4::2] == row[2])[0] for row in tokens[slot == 0]])
    assert np.bincount(second, minlength=3) / len(second) == pytest.approx([0, 0.6, 0.4], abs=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 18, "pairs": 5}, "length=18, pairs=5: .* length=20 or more, or pairs=4 or"),
        ({"length": 17}, "length=17, pairs=4: .* an even length"),
        ({"pairs": 0}, "pairs=0: .* length=4 or more"),
        ({"vocab_size": 9}, "vocab_size=9, pairs=4: .* vocab_size=10 or more"),
        ({"power": 0.0}, "power=0.0: give a number above 0"),
    ],
)
def test_rows_that_cannot_be_made_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Recall(**{"length": 16, "pairs": 4, "vocab_size": 20, **changes})


def test_the_smallest_rows_that_the_messages_offer_can_be_made():
    for task in (Recall(20, 5, 12), Recall(4, 1, 4)):
        assert (rows(task, 0, np.arange(9))[1] != IGNORED).sum() == 9 * task.pairs
