"""Models and trainings of the recall benchmark: what they are, and that they learn."""

import numpy as np
import pytest
import torch

from benchmarks import recall_train
from benchmarks.recall_models import D_MODEL, MODELS, RESIZED, SIZES, build
from benchmarks.recall_train import Setup, accuracy, answered, rate_factor, row_shares, train
from data.mqar import IGNORED, Recall, rows
from model.mixers.linear import LinearMixer
from model.mixers.softmax import SoftmaxMixer

TINY = Setup(vocab_size=12, length=8, pairs=(1, 2), batch=4, steps=3, test_rows=6)


@pytest.mark.parametrize("name", [*MODELS, *RESIZED])
def test_every_model_has_two_blocks_with_convolutions_and_no_positions(name):
    network = build(name, 20, seed=0)
    names = name.split()
    assert len(network.blocks) == 2
    for block, mixer in zip(network.blocks, 2 * names if len(names) == 1 else names, strict=True):
        if isinstance(block.mixer, SoftmaxMixer):
            assert block.mixer.rope_base is None
            window = mixer.removeprefix("window")
            assert block.mixer.mask.window == (None if mixer == "softmax" else int(window))
            assert block.mixer.conv_k is not None
        else:
            assert isinstance(block.mixer, LinearMixer)
            assert block.mixer.conv_q is not None
            _, _, width = mixer.partition("-")
            assert not width or block.mixer.key_dim == int(width)
    assert network.head.weight is network.embedding.weight
    tokens = torch.randint(20, (2, 16))
    assert network(tokens).isfinite().all()


def test_sizes_have_the_key_widths_that_they_are_listed_with_and_states_of_8_times():
    for sizes in SIZES.values():
        mixers = [build(name, 20, seed=0).blocks[0].mixer for name in sizes.values()]
        assert [mixer.key_dim for mixer in mixers] == list(sizes)
        assert mixers[-1].features * D_MODEL == 8 * mixers[0].features * D_MODEL


def test_weights_follow_from_the_seed_and_leave_the_generator_as_it_was():
    before = torch.get_rng_state()
    first, again, other = (build("gla", 20, seed).embedding.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_only_questions_are_answered():
    network = build("softmax", 12, 0)
    tokens, labels = map(torch.from_numpy, rows(Recall(8, 2, 12), 0, np.arange(3)))
    logits, answers = answered(network, tokens, labels)
    assert torch.equal(answers, labels[labels != IGNORED])
    assert torch.allclose(logits, network(tokens)[labels != IGNORED], atol=1e-6)


def test_every_row_counts_the_same_in_the_loss():
    labels = torch.tensor([[IGNORED, 5, IGNORED, 7], [3, IGNORED, IGNORED, IGNORED]])
    assert row_shares(labels).tolist() == [0.25, 0.25, 0.5]


class Memory(torch.nn.Module):
    """Stands for a network that remembers every pair, or answers token 0."""

    def __init__(self, perfect: bool) -> None:
        super().__init__()
        self.perfect = perfect

    def hidden(self, tokens):
        answers = torch.zeros_like(tokens)
        for row, out in zip(tokens.tolist(), answers, strict=True):
            for t in range(len(row)):
                found = row.index(row[t]) + 1
                out[t] = row[found] if self.perfect and found < len(row) else 0
        return answers

    def head(self, answers):
        return torch.nn.functional.one_hot(answers, 12).float()


def test_accuracy_is_the_share_of_right_answers_in_any_batches():
    task = Recall(8, 2, 12)
    assert accuracy(Memory(True), task, 7, batch=3) == 1
    assert accuracy(Memory(False), task, 7, batch=3) == 0
    network = build("linear", 12, 0)
    assert accuracy(network, task, 50, batch=7) == accuracy(network, task, 50, batch=50)


def test_a_training_is_reproduced_and_its_rows_are_new_to_it(monkeypatch):
    seen = []

    def recorded(task, seed, index):
        seen.append((task.length, task.pairs, seed, tuple(index)))
        return rows(task, seed, index)

    monkeypatch.setattr(recall_train, "rows", recorded)
    first = train(TINY, "linear softmax", 0.01, 1)
    assert seen[:6] == [(8, p, 1, (2 * s, 2 * s + 1)) for s in range(3) for p in (1, 2)]
    assert {seed for *_, seed, _ in seen[6:]} == {2**32}
    kinds = [(score["length"], score["pairs"]) for score in first["scores"]]
    assert kinds == [(8, 1), (8, 2), (16, 2), (16, 4)]
    again = train(TINY, "linear softmax", 0.01, 1)
    assert first | {"seconds": 0} == again | {"seconds": 0}
    assert first["steps"] == 3


def test_a_training_learns_and_ends_when_it_answers_everything():
    # One pair and one slot: the value is the token before the question.
    setup = Setup(vocab_size=6, length=4, pairs=(1,), batch=16, steps=300, test_rows=64)
    found = train(setup, "softmax", 0.01, 0)
    assert found["scores"][0]["accuracy"] == 1
    assert 25 <= found["steps"] < 300


def test_a_training_that_diverges_ends_with_the_score_it_has(monkeypatch):
    network = build("linear", 12, 0)
    with torch.no_grad():
        network.norm.weight.fill_(float("nan"))
    monkeypatch.setattr(recall_train, "build", lambda *given: network)
    found = train(TINY, "linear", 0.01, 0)
    assert found["steps"] == 1
    assert all(0 <= score["accuracy"] < 1 for score in found["scores"])


def test_the_rate_rises_and_falls():
    factors = [rate_factor(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == 1
    assert factors[:10] == sorted(factors[:10])
    assert factors[9:] == sorted(factors[9:], reverse=True)
    assert factors[-1] == pytest.approx(0.02)
    assert rate_factor(0, 1) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 5}, "batch=5 rows cannot be shared equally by 2 numbers of pairs; give a mult"),
        ({"pairs": (1, 3)}, "length=8, pairs=3: "),
        ({"vocab_size": 9}, "vocab_size=9, pairs=4: .* vocab_size=10 or more"),  # of longer rows
    ],
)
def test_setups_that_make_no_rows_are_refused(changes, message):
    given = {"vocab_size": 12, "length": 8, "pairs": (1, 2), "batch": 4, "steps": 3, "test_rows": 6}
    with pytest.raises(ValueError, match=message):
        Setup(**{**given, **changes})
