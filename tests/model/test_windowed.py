"""What a window costs: counted in scores, for every way through attention."""

import pytest
import torch

import model.sdpa
from model.attention import continued_attention
from model.attention_mask import AttentionMask
from model.kv_cache import extend, trim
from model.sequence import SequenceInfo
from tests.composing import small_model
from tests.model.attention_formula import by_document, in_blocks, tensors

WINDOW, ANCHORS = 32, 4
MASK = AttentionMask(WINDOW, ANCHORS)
BLOCK = 256  # queries


def prompt_after_one_token(q, k, v, segments, mask):
    info = SequenceInfo.of(segments, segments)
    first, rest = (
        SequenceInfo(info.segments[:, at], info.positions[:, at])
        for at in (slice(1), slice(1, None))
    )
    state = trim(extend(None, k[:, :1], v[:, :1], first), mask)
    return continued_attention(q[:, 1:], k[:, 1:], v[:, 1:], rest, mask, state)


@pytest.fixture
def scores(monkeypatch):
    """The number of scores of each call of the fused kernel, per row and head."""
    counted = []
    run = model.sdpa.F.scaled_dot_product_attention

    def counting(q, k, v, **options):
        counted.append(len(q) * q.shape[2] * k.shape[2])
        return run(q, k, v, **options)

    monkeypatch.setattr(model.sdpa.F, "scaled_dot_product_attention", counting)
    return counted


@pytest.mark.parametrize("documents", [1, 3])
@pytest.mark.parametrize("path", [by_document, in_blocks, prompt_after_one_token])
def test_scores_grow_with_the_length_not_with_its_square(path, documents, scores):
    for length in (1024, 4096):
        scores.clear()
        segments = (torch.arange(length) * documents // length).expand(2, -1)
        path(*tensors(2, 1, length, torch.float32), segments, MASK)
        # A query meets at most its block, the window before it and the anchors.
        queries = length + documents * BLOCK
        assert length * WINDOW < sum(scores) / 2 <= queries * (BLOCK + WINDOW + ANCHORS)


def test_documents_within_a_window_cost_their_squares(scores):
    segments = (torch.arange(320) // 20).expand(2, -1)
    by_document(*tensors(2, 1, 320, torch.float32), segments, MASK)
    assert sum(scores) == 2 * 16 * 20**2


@torch.no_grad()
def test_a_long_prompt_is_read_at_the_same_cost_per_token(scores):
    network = small_model("window").eval()
    _, cache = network.decode(torch.zeros(1, 20, dtype=torch.int64))
    for length in (512, 2048):
        scores.clear()
        network.decode(torch.zeros(1, length, dtype=torch.int64), cache)
        assert sum(scores) <= length * (BLOCK + 16)
