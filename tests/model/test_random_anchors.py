"""Random anchors: fair, the same in every piece of a document, bounded, and the same everywhere."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import model.flex
from model.attention_mask import AttentionMask
from model.network import LanguageModel
from model.random_anchors import NEVER, RandomAnchors, changes
from tests.composing import composed, small_model

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

WITH = ("model.mixers.window.random_anchors=5", "model.mixers.window.anchors=2")


def network_of(layers: str = "window*2", *overrides: str) -> LanguageModel:
    torch.manual_seed(0)
    return small_model(layers, *WITH, *overrides).eval()


def tokens_of(rows: int, length: int) -> torch.Tensor:
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(0))


def test_every_token_behind_the_window_is_as_likely():
    draws, places, candidates = 2000, 4, 81
    counts = torch.zeros(candidates)
    for seed in range(draws):
        for turns in changes(places, seed, 0):
            counts[[c for c in turns if c < candidates][-1]] += 1
    # Each about 99 times, give or take 10. Place 0 has one candidate more than the others.
    expected = draws / torch.tensor([len(range(c % 4, candidates, 4)) for c in range(candidates)])
    assert ((counts - expected).square() / expected).mean().item() == pytest.approx(1, abs=0.3)
    assert ((counts - expected).abs() / expected.sqrt()).max() < 4.5


@pytest.mark.parametrize("places", [1, 3, 8])
def test_tables_say_what_happens_candidate_by_candidate(places):
    anchors = RandomAnchors(places, seed=3, block=1)
    turns = changes(places, 3, 1)
    length = 500
    candidate = torch.arange(length)
    held, left_at, displaced = [-1] * places, {}, []
    contents = []
    for c in range(length):
        displaced.append(c)
        if c in turns[c % places]:
            displaced[c] = held[c % places]
            left_at[held[c % places]] = c
            held[c % places] = c
        contents.append(list(held))
    assert anchors.held(candidate).tolist() == contents
    assert anchors.displaced(candidate).tolist() == displaced
    stay = anchors.stay(candidate).tolist()
    for c in range(length):
        if c not in turns[c % places]:
            assert stay[c] == 0
        elif c in left_at:
            assert stay[c] == left_at[c] - c
        else:
            assert c + stay[c] >= length
    assert anchors.held(torch.tensor([[-1, -7]])).tolist() == [[[-1] * places] * 2]


def test_draws_depend_on_seed_and_block_alone_and_are_the_same_on_every_machine():
    first = [turns[:4] for turns in changes(2, 0, 0)]
    assert first == [(0, 38, 656, 5552), (1, 5, 15, 17)]
    others = [changes(2, 1, 0), changes(2, 0, 1)]
    assert changes(2, 0, 0) not in others
    assert others[0] != others[1]


def test_the_longest_document_has_as_many():
    anchors = RandomAnchors(16, 0, 0)
    held = anchors.held(torch.tensor(2**31 - 1))
    assert len(set(held.tolist())) == 16
    assert held.median() > 2**28
    assert anchors.leaving.max() == NEVER
    assert changes.__wrapped__(1024, 5, 7)  # no place has more turns than the table


@torch.no_grad()
def test_a_network_decodes_in_pieces_what_it_computes_at_once():
    network = network_of()
    tokens = tokens_of(1, 139)
    full = network(tokens)
    for pieces in ((1,) * 60, (37, 1, 29, 1, 1, 70), (138, 1)):
        cache, end = None, 0
        for piece in pieces:
            logits, cache = network.decode(tokens[:, end : end + piece], cache)
            end += piece
            assert torch.allclose(logits, full[:, end - 1], atol=3e-5)
            assert cache.nbytes() == 16 + sum(b.mixer.state_bytes(end) for b in network.blocks)


@torch.no_grad()
def test_a_document_is_the_same_packed_alone_and_continued():
    network = network_of()
    tokens, segments = tokens_of(2, 130), torch.zeros(2, 130, dtype=torch.int64)
    segments[0, 40:], segments[1, 3:] = 1, 5
    packed = network(tokens, segments)
    alone = (network(tokens[:1, 40:]), network(tokens[1:, 3:]))
    cache = None
    for start in range(0, 130, 13):
        at = slice(start, start + 13)
        logits, cache = network.decode(tokens[:, at], cache, segments[:, at])
    for row, single in enumerate(alone):
        assert torch.allclose(packed[row, -90:], single[0, -90:], atol=3e-5)
        assert torch.allclose(logits[row], single[0, -1], atol=3e-5)


@torch.no_grad()
def test_every_block_of_a_network_on_flex_attention_has_its_own(monkeypatch):
    network = network_of("window*2 gla window")
    tokens = tokens_of(2, 300)
    segments = (torch.arange(300) > torch.tensor([[100], [7]])).long()
    expected = network(tokens, segments)
    monkeypatch.setattr(model.flex, "_DEVICES", ("cpu",))
    assert torch.allclose(network(tokens, segments), expected, atol=3e-5)
    tables = [block.mixer.drawn.contents for block in network.blocks if block.name == "window"]
    assert not torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[1], tables[2])


@torch.no_grad()
@pytest.mark.parametrize(
    "devices",
    [pytest.param(("cpu",), id="flex", marks=pytest.mark.long), pytest.param((), id="in blocks")],
)
def test_compiled_blocks_that_draw_others_share_one_program(devices, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(model.flex, "_DEVICES", devices)
    network = network_of("window*3")
    tokens, segments = tokens_of(2, 300), (torch.arange(300) > 100).long().expand(2, -1)
    expected = network(tokens, segments)
    counter = CompileCounterWithBackend("eager")
    for block in network.blocks:
        block.compile(backend=counter, fullgraph=True)
    assert torch.allclose(network(tokens, segments), expected, atol=1e-5)
    assert counter.frame_count == 1


def test_tables_are_whole_after_a_change_of_type_and_a_move_from_no_device():
    network = network_of()
    with torch.device("meta"):
        empty = LanguageModel(network.settings, 64)
    empty.to_empty(device="cpu").init_weights()
    for moved in (empty, empty.to(torch.bfloat16)):
        for own, other in zip(moved.blocks, network.blocks, strict=True):
            assert torch.equal(own.mixer.drawn.contents, other.mixer.drawn.contents)
            assert torch.equal(own.mixer.mask.drawn.leaving, other.mixer.mask.drawn.leaving)
    assert not any("drawn" in name for name in network.state_dict())


def test_flops_count_the_keys_that_are_seen():
    for length in (1, 5, 9, 30, 200):
        for mask in (
            AttentionMask(4, 2, drawn=RandomAnchors(5, 0, 0)),
            AttentionMask(1, drawn=RandomAnchors(1, 0, 0)),
        ):
            position = torch.arange(length)
            visible = mask.visible(position[:, None] - position, mask.reach(position))
            assert visible.sum(dim=1).max() <= mask.window + mask.far_keys
            assert mask.mean_visible(length) == visible.sum().item() / length


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("model.mixers.softmax.random_anchors=4", "random_anchors=4 needs a window"),
        ("model.mixers.window.anchor_seed=1", "anchor_seed=1 is not read with random_anchors=0"),
        ("model.mixers.window.random_anchors=1025", "random_anchors"),
        ("model.mixers.window.random_anchors=0.1", "random_anchors"),
    ],
)
def test_mistakes_are_refused(override, reason):
    with pytest.raises(ValueError, match=reason):
        composed(override)
