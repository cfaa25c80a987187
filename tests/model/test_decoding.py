"""Decoding with the cache, for every mixer: pieces, padding, reordering, continuations, memory."""

import re

import pytest
import torch

from conf.cli import CONF
from model.mixers import build_mixer
from model.pattern import Depth
from tests.composing import PRESETS, composed, small_model
from tests.model.family import EVERY_MIXER, documents, family_model, tokens_of


@torch.no_grad()
@EVERY_MIXER
@pytest.mark.parametrize("pieces", [(1,) * 20, (37, 1, 29, 62), (138, 1), (2, 137)])
def test_decoding_in_pieces_equals_the_full_forward(layers, pieces):
    model = family_model(layers).eval()
    tokens = tokens_of(2, sum(pieces))
    full = model(tokens)
    cache, end = None, 0
    for piece in pieces:
        logits, cache = model.decode(tokens[:, end : end + piece], cache)
        end += piece
        assert torch.allclose(logits, full[:, end - 1], atol=3e-5)
    assert cache.next_position.tolist() == [sum(pieces)] * 2


@torch.no_grad()
@EVERY_MIXER
def test_documents_may_end_inside_of_pieces_and_between_them(layers):
    model = family_model(layers).eval()
    tokens, segments = tokens_of(2, 129), documents(129, 38, 50, 128, rows=2)
    full = model(tokens, segments)
    cache, end = None, 0
    for piece in (37, 1, 29, 61, 1):
        at = slice(end, end + piece)
        logits, cache = model.decode(tokens[:, at], cache, segments[:, at])
        end += piece
        assert torch.allclose(logits, full[:, end - 1], atol=3e-5)
    assert cache.next_position.tolist() == [1, 1]


@torch.no_grad()
@EVERY_MIXER
def test_padded_rows_prefilled_in_pieces_and_reordered_continue_as_each_text_alone(layers):
    model = family_model(layers).eval()
    long, short = tokens_of(1, 30), tokens_of(1, 21, seed=1)
    rows = torch.cat((long, torch.cat((tokens_of(1, 9, seed=2), short), dim=1)))
    segments = torch.ones(2, 30, dtype=torch.int64)
    segments[1, :9] = 0
    cache, end = None, 0
    for piece in (5, 8, 17):  # the first is padding alone in the second row
        at = slice(end, end + piece)
        logits, cache = model.decode(rows[:, at], cache, segments[:, at])
        end += piece
    alone = [model.decode(text) for text in (long, short)]
    for row in range(2):
        assert torch.allclose(logits[row], alone[row][0][0], atol=3e-5)
    order = (1, 0, 1)
    cache, alone = cache.reorder(torch.tensor(order)), [alone[row][1] for row in order]
    for step in range(6):
        tokens = tokens_of(3, 1, seed=10 + step)
        logits, cache = model.decode(tokens, cache)
        for row in range(3):
            wanted, alone[row] = model.decode(tokens[row : row + 1], alone[row])
            assert torch.allclose(logits[row], wanted[0], atol=3e-5)


@torch.no_grad()
@EVERY_MIXER
def test_a_reordered_cache_continues_the_reordered_prompts(layers):
    model = family_model(layers).eval()
    prompts, order = tokens_of(3, 40), torch.tensor([2, 0, 0])
    _, cache = model.decode(prompts)
    _, wanted = model.decode(prompts[order])
    moved = cache.reorder(order)
    for step in range(5):
        token = tokens_of(3, 1, seed=step + 1)
        left, moved = model.decode(token, moved)
        right, wanted = model.decode(token, wanted)
        assert torch.allclose(left, right, atol=1e-5)


@torch.no_grad()
@EVERY_MIXER
def test_two_continuations_of_one_cache_do_not_meet(layers):
    model = family_model(layers).eval()
    _, cache = model.decode(tokens_of(1, 40))
    first, second = tokens_of(1, 20, seed=1), tokens_of(1, 20, seed=2)
    expected, _ = model.decode(first, cache)
    model.decode(second, cache)
    again, _ = model.decode(first, cache)
    assert torch.equal(expected, again)


@torch.no_grad()
@EVERY_MIXER
def test_a_cache_cannot_be_rolled_back(layers):
    _, cache = family_model(layers).eval().decode(tokens_of(1, 3))
    with pytest.raises(ValueError, match=r"cannot be rolled back by 2 tokens: .* keep"):
        cache.truncate(2)


@torch.no_grad()
@EVERY_MIXER
def test_the_cache_holds_the_bytes_that_the_layer_table_states(layers):
    model = family_model(layers).eval()
    for length in (9, 40):
        _, cache = model.decode(tokens_of(1, length))
        stated = sum(block.mixer.state_bytes(length) for block in model.blocks)
        assert cache.nbytes() == stated + 16  # 16: the model's own two counters


@torch.no_grad()
@pytest.mark.parametrize("name", PRESETS)
def test_the_memory_of_a_row_is_what_readme_says(name):
    """Constant: after any prompt and any number of steps, once windows and anchors are full."""
    readme = (CONF.parent / "README.md").read_text()
    said = re.search(rf"^\| `{name}` \|.*\| (.*) \|$", readme, flags=re.MULTILINE)[1]
    model = family_model(name).eval()
    sizes = []
    for length in (56, 100, 200):
        _, cache = model.decode(tokens_of(2, length))
        for step in range(2):
            _, cache = model.decode(tokens_of(2, 1, seed=step), cache)
        sizes.append(cache.nbytes() / 2)
    if said == "grows with the text":
        assert sizes[1] - sizes[0] == 44 * (2 * 32 * 4 + 16)  # key, value; document, position
        assert sizes[2] - sizes[1] == 100 * (2 * 32 * 4 + 16)
        return
    full = int(re.fullmatch(r"constant(?: after (\d+) tokens)?", said)[1] or 1)
    settings = composed(f"model.layers={name}").model
    mixer = build_mixer((name,), settings, Depth(0, 1))
    assert mixer.state_bytes(full) == mixer.state_bytes(10**6)
    assert full == 1 or mixer.state_bytes(full - 1) < mixer.state_bytes(full)
    assert sizes[0] == sizes[1] == sizes[2]


@torch.no_grad()
@EVERY_MIXER
def test_a_cache_keeps_nothing_else_of_a_long_prompt_alive(layers):
    """A part of a tensor keeps the whole of it in memory."""
    model = family_model(layers).eval()
    _, cache = model.decode(tokens_of(2, 2000))
    for _ in range(2):
        assert held_bytes(cache) <= 2 * cache.nbytes()
        _, cache = model.decode(tokens_of(2, 1), cache)


def held_bytes(cache) -> int:
    """Bytes of the storages behind a cache, each counted once."""
    storages = {}

    def add(x: torch.Tensor) -> torch.Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    cache._map(add)
    return sum(storages.values())


@torch.no_grad()
def test_a_window_of_one_token_is_decoded_without_keys():
    model = small_model("window", "model.mixers.window.window=1").eval()
    tokens = tokens_of(1, 9)
    _, cache = model.decode(tokens[:, :8])
    logits, _ = model.decode(tokens[:, 8:], cache)
    assert torch.allclose(logits, model(tokens)[:, -1], atol=1e-5)
