"""Softmax attention: every path through it against one float64 formula, gradients, block masks."""

import itertools

import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention_module
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import create_block_mask

import model.attention
import model.flex
from model.attention import attention
from model.attention_mask import AttentionMask, alibi_slope
from model.flex import BLOCK, block_mask
from model.mixers import build_mixer
from model.mixers.softmax import SoftmaxMixer
from model.network import LanguageModel
from model.pattern import Depth
from model.random_anchors import RandomAnchors
from model.sequence import SequenceInfo
from tests.composing import composed, small_model
from tests.model.attention_formula import (
    LENGTH,
    PATHS,
    by_document,
    by_flex,
    formula,
    in_blocks,
    masked,
    paper_slopes,
    segments_of,
    tensors,
)

# The eager form is meant here, and fast enough.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

MASKS = [
    AttentionMask(),
    AttentionMask(window=1),
    AttentionMask(window=13),
    AttentionMask(window=200),
    AttentionMask(window=13, anchors=3),
    AttentionMask(window=5, anchors=9),
    AttentionMask(window=1, anchors=1),
    AttentionMask(alibi=True),
    AttentionMask(window=13, alibi=True),
    AttentionMask(window=5, anchors=9, alibi=True),
    AttentionMask(window=4, drawn=RandomAnchors(5, seed=0, block=0)),
    AttentionMask(window=1, anchors=2, alibi=True, drawn=RandomAnchors(3, seed=1, block=2)),
]
SOME_MASKS = [MASKS[0], MASKS[4], MASKS[9]]
HEADS = [(6, 3), (4, 1), (2, 2)]  # query heads, key and value heads


@pytest.fixture
def small_query_blocks(monkeypatch):
    """Explicit masks for 8 queries at a time, so that short rows have several blocks."""
    monkeypatch.setattr(model.attention, "_QUERY_BLOCK", 8)


@pytest.mark.usefixtures("small_query_blocks")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_every_path_equals_the_formula(path, mask):
    segments = segments_of(LENGTH)
    # Eager flex_attention is traced anew for every number of heads, which takes its time.
    for heads, kv_heads in HEADS[:1] if path is by_flex and mask != MASKS[4] else HEADS:
        q, k, v = tensors(heads, kv_heads, LENGTH, torch.float64)
        expected = formula(q, k, v, segments, mask).y
        # flex_attention's scores take slopes in float32.
        atol = 1e-6 if path is by_flex else 1e-12
        assert torch.allclose(path(q, k, v, segments, mask).y, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", SOME_MASKS, ids=str)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
def test_rounding_stays_that_of_the_dtype(path, mask, dtype, error):
    segments = segments_of(LENGTH)
    q, k, v = tensors(4, 2, LENGTH, dtype)
    got = path(q, k, v, segments, mask).y
    expected = formula(q.double(), k.double(), v.double(), segments, mask).y
    assert got.dtype == dtype
    assert (got.double() - expected).norm() / expected.norm() < error


@pytest.mark.usefixtures("small_query_blocks")
@pytest.mark.parametrize(
    ("path", "mask"),
    [
        *itertools.product([by_document, masked, in_blocks], MASKS),
        *itertools.product([by_flex], SOME_MASKS),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_gradients_equal_those_of_the_formula(path, mask, monkeypatch):
    # Eager flex_attention has gradients on a CPU too, but refuses inputs that ask for them.
    monkeypatch.setattr(flex_attention_module, "_validate_device", lambda *tensors: None)
    segments = segments_of(LENGTH)
    inputs = [x.requires_grad_() for x in tensors(6, 3, LENGTH, torch.float64)]
    weights = torch.linspace(-1, 1, inputs[0].numel(), dtype=torch.float64).view_as(inputs[0])
    expected = torch.autograd.grad((formula(*inputs, segments, mask).y * weights).sum(), inputs)
    got = torch.autograd.grad((path(*inputs, segments, mask).y * weights).sum(), inputs)
    for left, right in zip(got, expected, strict=True):
        assert torch.allclose(left, right, atol=1e-12, rtol=0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", SOME_MASKS, ids=str)
def test_other_documents_change_no_bit(path, mask):
    segments = segments_of(LENGTH)
    q, k, v = tensors(4, 2, LENGTH, torch.float32)
    changed = [x.clone() for x in (q, k, v)]
    first = LENGTH * 3 // 7
    for x in changed:
        x[0, :first] = 1e3 * torch.randn_like(x[0, :first])
    assert torch.equal(
        path(q, k, v, segments, mask).y[0, first:], path(*changed, segments, mask).y[0, first:]
    )


@pytest.mark.parametrize("mask", SOME_MASKS, ids=str)
def test_rows_without_document_numbers_are_one_document(mask):
    inputs = tensors(2, 1, 300, torch.float32)
    info = SequenceInfo.of(inputs[0][..., 0, 0])
    expected = by_document(*inputs, torch.zeros(2, 300, dtype=torch.int64), mask).y
    assert torch.equal(attention(*inputs, info, mask).y, expected)
    info.block_masks[mask.description] = block_mask(info, mask)
    assert torch.allclose(attention(*inputs, info, mask).y, expected, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_slopes_are_those_of_the_paper(heads):
    got = alibi_slope(torch.arange(heads), heads, torch.float64)
    assert torch.allclose(got, paper_slopes(heads), rtol=1e-12)


@pytest.mark.parametrize("length", [1, BLOCK, 3 * BLOCK + 1, 4 * BLOCK])
@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(
    "mask",
    [
        *(AttentionMask(window=w) for w in (None, 1, 2, 127, 128, 129, 130, 255, 256, 300)),
        *(AttentionMask(window=w, anchors=n) for w in (1, 200) for n in (1, 127, 128, 253, 300)),
        *(AttentionMask(window=w, drawn=RandomAnchors(2, w, 1)) for w in (1, 2, 128, 200)),
        AttentionMask(window=3, anchors=126, drawn=RandomAnchors(3, 2, 0)),
    ],
    ids=str,
)
def test_blocks_are_those_that_torch_finds_element_by_element(length, numbered, mask):
    # Documents that end at, one before and one after the borders of blocks, and in between.
    cuts = torch.tensor(
        [[1, 128, 256, 257], [127, 129, 300, 301], [2, 2, 2, 384], [5, 200, 383, 9]]
    )
    index = torch.arange(length)
    segments = (index[None, None] >= cuts[:, :, None]).sum(dim=1) if numbered else None
    info = SequenceInfo.of(index.expand(len(cuts), -1), segments)
    got = block_mask(info, mask)
    rows = len(cuts) if numbered else 1
    expected = create_block_mask(got.mask_mod, rows, None, length, length, "cpu")
    assert got.shape == expected.shape
    for name in ("kv", "full_kv", "q", "full_q"):
        counts, wanted = (getattr(x, f"{name}_num_blocks") for x in (got, expected))
        assert torch.equal(counts, wanted)
        listed, wanted = (getattr(x, f"{name}_indices") for x in (got, expected))
        used = torch.arange(listed.shape[-1]) < counts[..., None]
        assert torch.equal(listed[used], wanted[used])


@pytest.fixture
def flex_everywhere(monkeypatch):
    """Training and evaluation take flex_attention on the CPU too (it has no gradients there)."""
    monkeypatch.setattr(model.flex, "_DEVICES", ("cpu",))


VARIANTS = [
    ("window softmax", "model.mixers.window.anchors=3"),
    (
        "window+gla softmax",
        "model.mixers.softmax.rope_base=null",
        "model.mixers.softmax.alibi=true",
    ),
    (
        "window",
        "model.mixers.window.anchors=20",
        "model.mixers.window.rope_base=null",
        "model.mixers.window.alibi=true",
        "model.mixers.window.kv_heads=1",
    ),
    (
        "window softmax",
        "model.mixers.window.anchors=3",
        "model.mixers.window.conv_width=3",
        "model.mixers.softmax.conv_width=4",
        "model.mixers.softmax.recall_init=true",
        "model.mixers.softmax.kv_heads=1",
    ),
]


def variant(layers: str, *overrides: str) -> LanguageModel:
    torch.manual_seed(0)
    return small_model(layers, *overrides).eval()


def tokens_of(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("options", VARIANTS)
def test_a_network_decodes_in_pieces_what_it_computes_at_once(options):
    network = variant(*options)
    tokens = tokens_of(1, 139)
    full = network(tokens)
    for pieces in ((1,) * 25, (37, 1, 29, 1, 1, 70), (138, 1)):
        cache, end = None, 0
        for piece in pieces:
            logits, cache = network.decode(tokens[:, end : end + piece], cache)
            end += piece
            assert torch.allclose(logits, full[:, end - 1], atol=3e-5)
            assert cache.nbytes() == 16 + sum(b.mixer.state_bytes(end) for b in network.blocks)


@torch.no_grad()
@pytest.mark.parametrize("options", VARIANTS)
def test_anchors_and_window_of_a_new_document_replace_the_old_ones(options):
    network = variant(*options)
    tokens = tokens_of(2, 90)
    segments = torch.zeros(2, 90, dtype=torch.int64)
    segments[0, 40:], segments[1, 3:] = 1, 5  # rows whose documents change at different steps
    cache = None
    for end in range(10, 100, 10):
        at = slice(end - 10, end)
        logits, cache = network.decode(tokens[:, at], cache, segments[:, at])
    assert torch.allclose(logits, network(tokens, segments)[:, -1], atol=3e-5)
    alone = torch.cat((network(tokens[:1, 40:])[:, -1], network(tokens[1:, 3:])[:, -1]))
    assert torch.allclose(logits, alone, atol=3e-5)


@torch.no_grad()
@pytest.mark.usefixtures("flex_everywhere")
@pytest.mark.parametrize("options", VARIANTS)
def test_a_network_on_flex_attention_equals_itself_document_by_document(options, monkeypatch):
    network = variant(*options)
    tokens, segments = tokens_of(2, 300), segments_of(300)
    made = []
    monkeypatch.setattr(
        model.flex, "block_mask", lambda *args: made.append(block_mask(*args)) or made[-1]
    )
    by_blocks = network(tokens, segments)
    assert len(made) == len(set(options[0].split()))
    monkeypatch.setattr(model.flex, "_DEVICES", ())
    assert torch.allclose(by_blocks, network(tokens, segments), atol=3e-5)
    assert len(made) == len(set(options[0].split()))


@torch.no_grad()
@pytest.mark.usefixtures("flex_everywhere")
def test_compiled_blocks_of_one_kind_share_one_graph():
    network = variant("(window softmax)*2 window", "model.mixers.window.anchors=3")
    tokens, segments = tokens_of(2, 300), segments_of(300)
    expected = network(tokens, segments)
    counter = CompileCounterWithBackend("eager")
    for block in network.blocks:
        block.compile(backend=counter, fullgraph=True)
    assert torch.allclose(network(tokens, segments), expected, atol=1e-5)
    network(tokens, segments_of(300).flip(0))
    assert counter.frame_count == 2


def test_flops_and_kept_keys_count_what_is_visible():
    for mask, length in itertools.product(MASKS, (1, 4, 12, 13, 14, 60)):
        position = torch.arange(length)
        visible = mask.visible(position[:, None] - position, mask.reach(position))
        assert mask.mean_visible(length) == visible.sum().item() / length
        if not mask.alibi:
            later = mask.visible(length - position, mask.reach(position))
            assert mask.most_kept(length) >= later.sum().item()


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("model.mixers.softmax.anchors=4", "anchors=4 needs a window"),
        ("model.mixers.softmax.alibi=true", "alibi=true with rope_base=10000.0"),
        ("model.mixers.window.anchors=-1", "anchors"),
        ("model.mixers.window.recall_init=true", "recall_init=true with conv_width=0"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(override, reason):
    with pytest.raises(ValueError, match=reason):
        composed(override)


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_recall_init_looks_up_what_followed_the_same_token(kv_heads):
    mixer: SoftmaxMixer = build_mixer(
        ("softmax",),
        composed(
            "model.d_model=256",
            "model.mixers.softmax.heads=4",
            f"model.mixers.softmax.kv_heads={kv_heads}",
            "model.mixers.softmax.conv_width=4",
            "model.mixers.softmax.recall_init=true",
            "model.mixers.softmax.rope_base=null",
        ).model,
        Depth(0, 1),
    )
    torch.manual_seed(0)
    for module in (mixer.conv_k, mixer.conv_v, mixer):
        module.init_weights()
    # Token 20 comes back as token 50. A value that only token 21 has arrives there: through the
    # first head, whose keys begin as the token before.
    x = torch.randn(1, 51, 256)
    x[0, 50] = x[0, 20]
    mixer.v.weight.zero_()
    mixer.v.weight[: mixer.head_dim, 0] = 1
    mixer.out.weight.zero_()
    mixer.out.weight[0, : mixer.head_dim] = 1
    x[..., 0] = 0
    x[0, 21, 0] = 1
    y, _ = mixer(x, SequenceInfo.of(x[..., 0], None))
    received = y[0, :, 0] / mixer.head_dim
    assert received[50] > 0.5
    assert received[30:50].max() < 0.5 * received[50]
