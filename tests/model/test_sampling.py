"""Sampling options at their borders, and generation with the cache."""

import pytest
import torch

from model.sampling import generate, next_token_probabilities
from tests.composing import small_model

VOCAB = 64
LOGITS = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)) * 3


def probabilities(**options):
    defaults = {"temperature": 1.0, "top_k": None, "top_p": None}
    return next_token_probabilities(LOGITS, **(defaults | options))


@pytest.mark.parametrize("top_k", [None, 0, VOCAB, VOCAB + 5])
@pytest.mark.parametrize("top_p", [None, 0, 1])
def test_options_that_keep_everything_change_nothing(top_k, top_p):
    kept = probabilities(top_k=top_k, top_p=top_p)
    assert torch.allclose(kept, LOGITS.softmax(dim=-1))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1e-6},
        {"temperature": 1e-320},
        {"top_k": 1},
        {"top_p": 1e-9},
        {"top_p": 1e-320},
    ],
)
def test_greedy_choices_agree(options):
    chosen = probabilities(**options)
    assert torch.equal(chosen.argmax(-1), LOGITS.argmax(-1))
    assert torch.allclose(chosen.max(dim=-1).values, torch.ones(3))


def test_equal_logits_give_the_lowest_id_at_temperature_0():
    chosen = next_token_probabilities(torch.zeros(1, 5), 0, None, None)
    assert chosen.tolist() == [[1, 0, 0, 0, 0]]


def test_top_k_and_top_p_keep_the_most_likely():
    order = LOGITS.argsort(-1, descending=True)
    top_k = probabilities(top_k=5)
    assert set(top_k[0].nonzero().flatten().tolist()) == set(order[0, :5].tolist())
    top_p = probabilities(top_p=0.5)
    mass = LOGITS.softmax(-1).gather(1, order).cumsum(-1)
    for row in range(3):
        needed = int((mass[row] < 0.5).sum()) + 1
        assert set(top_p[row].nonzero().flatten().tolist()) == set(order[row, :needed].tolist())


@pytest.mark.parametrize("options", [{"temperature": -1}, {"top_k": -1}, {"top_p": 1.5}])
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(ValueError, match="between 0 and 1"):
        probabilities(**options)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small_model("gla retnet softmax window").eval()


def run(model, prompts, count, **options):
    options = {"eos_id": VOCAB, "pad_id": 0, "temperature": 0.0} | options
    steps = list(generate(model, prompts, count, **options))
    return torch.stack(steps, dim=1) if steps else torch.empty(len(prompts), 0)


def test_generation_equals_repeated_full_forwards(model):
    prompts = torch.randint(VOCAB, (2, 50))
    got = run(model, prompts, 12, prefill_chunk=16)
    rows = prompts
    for _ in range(12):
        rows = torch.cat((rows, model(rows)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(got, rows[:, 50:])


def test_the_same_seed_gives_the_same_text(model):
    prompts = torch.randint(VOCAB, (1, 5))
    texts = [
        run(model, prompts, 20, temperature=1.0, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_a_row_that_has_ended_gives_only_padding(model):
    prompts = torch.randint(VOCAB, (2, 5))
    free = run(model, prompts, 8)
    eos = int(free[0, 1])
    got = run(model, prompts, 8, eos_id=eos, pad_id=63)
    assert got[0].tolist() == [*free[0, : free[0].tolist().index(eos) + 1].tolist()] + [63] * (
        got.shape[1] - free[0].tolist().index(eos) - 1
    )
    if eos not in free[1].tolist():
        assert torch.equal(got[1], free[1])


def test_generation_stops_when_all_rows_have_ended(model):
    prompts = torch.randint(VOCAB, (1, 5))
    eos = int(run(model, prompts, 1)[0, 0])
    assert run(model, prompts, 50, eos_id=eos).shape == (1, 1)


def test_no_tokens_and_no_prompt(model):
    assert run(model, torch.randint(VOCAB, (1, 5)), 0).shape == (1, 0)
    with pytest.raises(ValueError, match="starts with BOS"):
        run(model, torch.empty(1, 0, dtype=torch.int64), 5)
