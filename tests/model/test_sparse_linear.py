"""Sparse plus linear attention: against one softmax over all tokens, in pieces, what it costs."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import model.attention
import model.flex
import model.mixers.sparse_linear
import model.sdpa
from model.attention_mask import AttentionMask
from model.mixers.sparse_linear import SparseLinearMixer
from model.random_anchors import RandomAnchors
from model.sequence import SequenceInfo
from model.sparse_linear_config import MAPS
from tests.composing import composed, small_model
from tests.model.attention_formula import LENGTH, added_to_scores, segments_of

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

PLAIN = ("rope_base=null", "qk_norm=false", "window=5", "anchors=2", "random_anchors=3")
VARIANTS = {
    "all": PLAIN,
    "no anchors": (*PLAIN, "anchors=0", "random_anchors=0"),
    "own token": (*PLAIN, "window=1", "anchors=0"),
    "split": (*PLAIN, "heads=4", "window_heads=2", "anchor_heads=2"),
    "apart": (*PLAIN, "heads=4", "window_heads=1", "anchor_heads=2", "anchor_seed=3"),
    "overlap": (*PLAIN, "heads=4", "window_heads=3", "anchor_heads=2", "random_anchors=0"),
    "gate": (*PLAIN, "output_gate=sigmoid", "head_dim=6"),
    "turned": (*PLAIN, "rope_base=100.0", "qk_norm=true"),
}
SOME = ["all", "apart", "turned"]


def mixer_of(variant: str, feature_map: str = "favor", **more) -> SparseLinearMixer:
    torch.manual_seed(0)
    options = [*VARIANTS[variant], f"feature_map={feature_map}"]
    options += ["random_features=24"] if feature_map == "favor" else ["redraw_every=null"]
    network = small_model("sparse_linear", *(f"model.mixers.sparse_linear.{o}" for o in options))
    return network.blocks[0].mixer


def inputs(length: int = LENGTH, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, length, 32, generator=generator, dtype=torch.float64).to(dtype)


def kernels(mixer: SparseLinearMixer, name: str, q: Tensor, k: Tensor) -> Tensor:
    """log phi(q_i).phi(k_j) by the definition of each map: [B, H, T, T] of [B, H, T, D]."""
    dim = q.shape[-1]
    pairs = q[:, :, :, None], k[:, :, None]
    if name == "exp":
        return (pairs[0] + pairs[1]).logsumexp(-1)
    if name == "favor":
        w = mixer.feature_map.projection.double()
        logits = [x * dim**-0.25 @ w.T - x.square().sum(-1, True) / 2 / dim**0.5 for x in (q, k)]
        weights = logits[0][:, :, :, None] + logits[1][:, :, None]
        return weights.logsumexp(-1) - math.log(len(w))
    if name == "hedgehog":
        m = mixer.feature_map
        both = (
            torch.einsum("bhtd,hed->bhte", x, weight) + bias[:, None]
            for x, weight, bias in ((q, m.weight_q, m.bias_q), (k, m.weight_k, m.bias_k))
        )
        logits = [torch.cat((y, -y), dim=-1) for y in both]
        return (logits[0][:, :, :, None] + logits[1][:, :, None]).logsumexp(-1)
    if name == "taylor":
        s = (pairs[0] * pairs[1]).sum(-1) / dim**0.5
        return (1 + s + s**2 / 2).log()
    maps = {
        "elu1": lambda x: F.elu(x) + 1,
        "relu": F.relu,
        "squared_relu": lambda x: F.relu(x) ** 2,
        "softmax": lambda x: x.softmax(-1),
        "dpfp": lambda x: (y := F.relu(torch.cat((x, -x), -1))) * y.roll(1, -1),
    }
    weights = maps[name](q) @ maps[name](k).transpose(-1, -2)
    return torch.where(weights > 0, torch.where(weights > 0, weights, 1).log(), -torch.inf)


def formula(mixer: SparseLinearMixer, name: str, x: Tensor, segments: Tensor) -> Tensor:
    """One softmax over all tokens before: the logit is the score, or the logarithm of phi.phi."""
    info = SequenceInfo.of(x[..., 0], segments)
    q, k, v = (p(x).unflatten(-1, (mixer.heads, -1)) for p in (mixer.q, mixer.k, mixer.v))
    if mixer.q_norm is not None:
        q, k = mixer.q_norm(q), mixer.k_norm(k)
    turned_q, turned_k = mixer._turned(q, info), mixer._turned(k, info)
    q, k, v, turned_q, turned_k = (z.transpose(1, 2) for z in (q, k, v, turned_q, turned_k))
    scores = turned_q @ turned_k.transpose(-1, -2) / mixer.head_dim**0.5
    of_dot_product = name in ("favor", "taylor")
    linear = kernels(mixer, name, *((turned_q, turned_k) if of_dot_product else (q, k)))
    exact = [
        added_to_scores(segments, heads.stop - heads.start, mask) for heads, mask in mixer.groups
    ]
    logits = torch.where(torch.cat(exact, dim=1) == 0, scores, linear)
    logits = logits + added_to_scores(segments, mixer.heads, AttentionMask())
    y = (logits.softmax(-1) @ v).transpose(1, 2).flatten(-2)
    if mixer.gate is not None:
        y = y * mixer.gate(x).sigmoid()
    return mixer.out(y)


def gradients(mixer: SparseLinearMixer, x: Tensor, y: Tensor) -> list[Tensor]:
    up = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return torch.autograd.grad((y * up).sum(), [x, *mixer.parameters()], materialize_grads=True)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(model.attention, "_QUERY_BLOCK", 8)
    monkeypatch.setattr(model.mixers.sparse_linear, "_PIECE", 7)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("variant", "feature_map"),
    [*((v, "favor") for v in VARIANTS), *(("apart", m) for m in MAPS if m != "favor")],
)
def test_outputs_and_gradients_are_those_of_one_softmax(variant, feature_map):
    mixer = mixer_of(variant, feature_map).double()
    x, segments = inputs().requires_grad_(), segments_of(LENGTH)
    y = mixer(x, SequenceInfo.of(x[..., 0], segments))[0]
    expected = formula(mixer, feature_map, x, segments)
    exact = variant != "turned"  # norms and rotations are float32
    assert torch.allclose(y, expected, atol=1e-9 if exact else 1e-5)
    for left, right in zip(gradients(mixer, x, y), gradients(mixer, x, expected), strict=True):
        assert (left - right).norm() <= (1e-9 if exact else 1e-5) * right.norm().clamp(min=1e-3)


@torch.no_grad()
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("feature_map", ["favor", "relu"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_pieces_with_a_state_are_the_whole(variant, feature_map):
    mixer = mixer_of(variant, feature_map).double()
    x, segments = inputs(), segments_of(LENGTH)
    full, whole = mixer(x, SequenceInfo.of(x[..., 0], segments), keep_state=True)
    for pieces in ((*(1,) * 24, 46), (3, 1, 30, 1, 35)):
        state, known, start = None, (None, None), 0
        for piece in pieces:
            at = slice(start, start + piece)
            info = SequenceInfo.of(x[:, at, 0], segments[:, at], *known)
            y, state = mixer(x[:, at], info, state, keep_state=True)
            assert torch.allclose(y, full[:, at], atol=1e-5)
            known, start = (
                (segments[:, start + piece - 1], info.positions[:, -1] + 1),
                start + piece,
            )
        assert torch.allclose(state.recurrence.S, whole.recurrence.S, atol=1e-4, rtol=1e-4)
        for left, right in zip(state.keys, whole.keys, strict=True):
            assert left.k.shape == right.k.shape


@pytest.mark.parametrize("drawn", [None, RandomAnchors(3, 1, 0), RandomAnchors(1, 0, 0)])
@pytest.mark.parametrize(("window", "anchors"), [(1, 0), (4, 0), (4, 3), (1, 2)])
def test_every_token_is_seen_exactly_or_in_the_state_and_never_comes_back(window, anchors, drawn):
    mask = AttentionMask(window, anchors, drawn=drawn)
    position, in_state = torch.arange(120), set()
    reach, leaving = mask.reach(position), mask.leaving(position)
    for i in range(120):
        if leaving[i] >= 0:
            assert int(leaving[i]) not in in_state
            in_state.add(int(leaving[i]))
        exact = mask.visible(i - position, reach).nonzero().flatten().tolist()
        assert sorted([*exact, *in_state]) == list(range(i + 1))


@torch.no_grad()
def test_a_document_within_the_window_is_softmax_attention():
    linear, softmax = (
        small_model(name, f"model.mixers.{name}.qk_norm=true", f"model.mixers.{name}.window=40")
        for name in ("sparse_linear", "window")
    )
    softmax.load_state_dict(linear.state_dict(), strict=False)
    tokens = torch.randint(64, (2, 40))
    assert torch.allclose(linear(tokens), softmax(tokens), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("feature_map", ["favor", "exp", "taylor", "elu1"])
@pytest.mark.parametrize("scale", [1e-3, 6.0])
def test_large_and_small_scores_share_the_normaliser(feature_map, scale):
    """Scores to 300 in float32: the weights of either part vanish next to the other's, or not."""
    mixer = mixer_of("apart", feature_map)
    x, segments = inputs(dtype=torch.float32) * scale, segments_of(LENGTH)
    y = mixer(x, SequenceInfo.of(x[..., 0], segments))[0]
    expected = formula(mixer.double(), feature_map, x.double(), segments)
    assert (y - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.parametrize("feature_map", MAPS)
def test_gradients_stay_finite_where_weights_vanish(feature_map):
    mixer = mixer_of("all", feature_map)
    x = (30 * inputs(dtype=torch.float32)).requires_grad_()
    y = mixer(x, SequenceInfo.of(x[..., 0], segments_of(LENGTH)))[0]
    assert all(bool(torch.isfinite(g).all()) for g in gradients(mixer, x, y))


@torch.no_grad()
@pytest.mark.parametrize("feature_map", MAPS)
def test_large_later_inputs_change_nothing_before_them(feature_map):
    mixer = mixer_of("all", feature_map)
    x = inputs(129, torch.float32)
    changed = torch.cat((x[:, :50], 100 * inputs(79, torch.float32)), dim=1)
    for segments in (torch.zeros(2, 129, dtype=torch.int64), (torch.arange(129) >= 50).long()):
        info = SequenceInfo.of(x[..., 0], segments.expand(2, -1))
        before, after = mixer(x, info)[0], mixer(changed, info)[0]
        assert torch.allclose(before[:, :50], after[:, :50], atol=1e-6, rtol=0)
        assert bool(torch.isfinite(after).all())


@torch.no_grad()
@pytest.mark.parametrize("variant", SOME)
def test_a_16_bit_mixer_computes_what_its_weights_say(variant):
    half, exact = mixer_of(variant, "elu1").to(torch.bfloat16), mixer_of(variant, "elu1")
    exact.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    x, segments = inputs(129, torch.bfloat16), segments_of(129)
    info = SequenceInfo.of(x[..., 0], segments)
    got, wanted = half(x, info)[0].float(), exact(x.float(), info)[0]
    assert (got - wanted).norm() < 0.03 * wanted.norm()


@torch.no_grad()
def test_scores_grow_with_the_length_and_the_state_does_not(monkeypatch):
    counted = []
    run = model.sdpa.F.scaled_dot_product_attention
    monkeypatch.setattr(
        model.sdpa.F,
        "scaled_dot_product_attention",
        lambda q, k, v, **options: (
            counted.append(len(q) * q.shape[2] * k.shape[2]) or run(q, k, v, **options)
        ),
    )
    network = small_model("sparse_linear").eval()
    sizes = set()
    for length in (1024, 4096):
        counted.clear()
        tokens = torch.zeros(1, length, dtype=torch.int64)
        _, cache = network.decode(tokens)
        assert sum(counted) <= length * (256 + 16 + 36 + 1)  # block, window, anchors, linear part
        counted.clear()
        _, cache = network.decode(tokens[:, :512], cache)
        assert sum(counted) <= 512 * (256 + 16 + 36 + 1)
        sizes.add(cache.nbytes())
    assert len(sizes) == 1
    assert network.flops_per_token(65_536) < 1.01 * network.flops_per_token(16_384)


@torch.no_grad()
def test_a_network_on_flex_attention_equals_itself(monkeypatch):
    network = small_model("sparse_linear*2", "model.mixers.sparse_linear.window_heads=1")
    tokens, segments = torch.randint(64, (2, 300)), segments_of(300)
    expected = network(tokens, segments)
    monkeypatch.setattr(model.flex, "_DEVICES", ("cpu",))
    assert torch.allclose(network(tokens, segments), expected, atol=3e-5)


@torch.no_grad()
def test_compiled_blocks_of_one_kind_share_one_program():
    torch._dynamo.reset()
    network = small_model("sparse_linear*2", "model.mixers.sparse_linear.anchor_heads=1")
    tokens, segments = torch.randint(64, (2, 300)), segments_of(300)
    expected = network(tokens, segments)
    counter = CompileCounterWithBackend("eager")
    for block in network.blocks:
        block.compile(backend=counter, fullgraph=True)
    assert torch.allclose(network(tokens, segments), expected, atol=1e-5)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["feature_map=identity"], "feature_map=identity: its kernel is signed.*use feature_map=e"),
        (["feature_map=cosformer"], "feature_map=cosformer: its features depend on positions"),
        (["feature_map=elu1"], "redraw_every=1000 is not read by feature_map=elu1"),
        (["window_heads=5"], "window_heads=5 of heads=4: give at most 4"),
        (["anchor_heads=5"], "anchor_heads=5 of heads=4: give at most 4"),
        (["window_heads=0"], "window_heads"),
        (["window=null"], "window"),
        (["anchors=0", "random_anchors=0", "anchor_heads=1"], "there are no anchors"),
        (["random_anchors=0", "anchor_seed=1"], "anchor_seed=1 is not read"),
        (["head_dim=7"], "head_dim=7 is an odd head width"),
    ],
)
def test_mistakes_are_refused(overrides, reason):
    with pytest.raises(ValueError, match=reason):
        composed(*(f"model.mixers.sparse_linear.{o}" for o in overrides))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["heads=3"], "heads=3 does not divide d_model=32"),
        (["heads=32"], "d_model=32 / heads=32 = 1 is an odd head width"),
        (
            ["head_dim=65536", "feature_map=taylor", "redraw_every=null"],
            "features of keys of 65536",
        ),
    ],
)
def test_widths_that_do_not_fit_are_refused(overrides, reason):
    with pytest.raises(ValueError, match=f"model.mixers.sparse_linear: .*{reason}"):
        small_model("sparse_linear", *(f"model.mixers.sparse_linear.{o}" for o in overrides))


@pytest.mark.parametrize("feature_map", ["exp", "hedgehog", "favor"])
def test_an_anchor_is_no_part_of_the_linear_sums(feature_map):
    """However large the features are that it would have."""
    mixer = mixer_of("all", feature_map).double()
    info = SequenceInfo.of(torch.zeros(1, LENGTH))
    q, k, v = (inputs()[:1].view(1, LENGTH, 2, 16) for _ in "qkv")
    q = q.clone()
    q[:, 6:, :, 0] = 0  # what the anchor's large channel meets
    outputs = []
    for size in (0.0, 60.0, 120.0):
        of_anchor = k.clone()
        of_anchor[:, 0] = 0
        of_anchor[:, 0, :, 0] = size
        outputs.append(mixer.attend(q, of_anchor, v, info)[0][:, 6:])
    assert torch.allclose(outputs[1], outputs[0], atol=1e-9)
    assert torch.allclose(outputs[2], outputs[0], atol=1e-9)
