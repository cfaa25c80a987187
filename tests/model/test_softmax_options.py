"""What is around the scores of softmax attention: one more key, norms, part of the rotary turns."""

import itertools

import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention_module
import torch.nn.functional as F

import model.attention
from model.attention_mask import AttentionMask
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
    segments_of,
    tensors,
)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

MASKS = [AttentionMask(), AttentionMask(window=13, anchors=3), AttentionMask(window=5, alibi=True)]
ALL = (
    "rope_fraction=0.25",
    "qk_norm=true",
    "output_gate=swish",
    "sinks=true",
    "kv_heads=1",
)


def logits(kind: str, heads: int, length: int = LENGTH) -> torch.Tensor:
    """Of a further key: per head (sinks), or per query too, some of them far off."""
    generator = torch.Generator().manual_seed(1)
    if kind == "sinks":
        return torch.randn(heads, generator=generator, dtype=torch.float64)
    shape = (2, length, heads)
    values = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(shape, generator=generator) < 0.2, values - 200, values)


@pytest.fixture
def small_query_blocks(monkeypatch):
    monkeypatch.setattr(model.attention, "_QUERY_BLOCK", 8)


@pytest.mark.usefixtures("small_query_blocks")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("mask", "kind"), [(MASKS[0], "sinks"), *((mask, "per query") for mask in MASKS[1:])], ids=str
)
def test_a_further_key_takes_part_in_the_denominator_of_every_path(path, mask, kind):
    segments = segments_of(LENGTH)
    q, k, v = tensors(6, 3, LENGTH, torch.float64)
    extra = logits(kind, 6)
    y, share = formula(q, k, v, segments, mask, extra.expand(2, LENGTH, 6))
    got = path(q, k, v, segments, mask, extra)
    atol = 1e-6 if path is by_flex else 1e-12
    assert torch.allclose(got.y, y, atol=atol, rtol=0)
    assert torch.allclose(got.share, share, atol=atol, rtol=0)


@pytest.mark.usefixtures("small_query_blocks")
@pytest.mark.parametrize("kind", ["sinks", "per query"])
@pytest.mark.parametrize(
    ("path", "mask"),
    [*itertools.product([by_document, masked, in_blocks], MASKS), (by_flex, MASKS[1])],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_its_gradients_equal_those_of_the_formula(path, mask, kind, monkeypatch):
    monkeypatch.setattr(flex_attention_module, "_validate_device", lambda *tensors: None)
    segments = segments_of(LENGTH)
    inputs = [*tensors(6, 3, LENGTH, torch.float64), logits(kind, 6)]
    inputs = [x.requires_grad_() for x in inputs]

    def gradients(attended):
        y, share = attended
        up, up_share = (torch.linspace(-1, 1, x.numel()).view_as(x) for x in (y, share))
        return torch.autograd.grad((y * up).sum() + (share * up_share).sum(), inputs)

    q, k, v, extra = inputs
    expected = gradients(formula(q, k, v, segments, mask, extra.expand(2, LENGTH, 6)))
    for left, right in zip(gradients(path(q, k, v, segments, mask, extra)), expected, strict=True):
        assert torch.allclose(left, right, atol=1e-5 if path is by_flex else 1e-12, rtol=0)


@pytest.mark.parametrize("path", PATHS)
def test_a_logit_is_not_rounded_to_16_bits(path):
    """5.01 as one bfloat16 number times sqrt(8) would be off by 2e-3, and every output with it."""
    segments = segments_of(LENGTH)
    q, k, v = tensors(4, 2, LENGTH, torch.bfloat16)
    extra = torch.full((4,), 5.01)
    got = path(q, k, v, segments, MASKS[1], extra)
    wide = (x.double() for x in (q, k, v))
    _, share = formula(*wide, segments, MASKS[1], extra.double().expand(2, LENGTH, 4))
    assert got.y.dtype == torch.bfloat16
    error = (got.share.double() - share).mean().abs() / share.mean()
    assert error < 1e-3


@pytest.mark.parametrize("gate", ["none", "swish", "sigmoid"])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_a_mixer_with_every_option_is_the_formula_around_its_weights(gate, fraction):
    torch.manual_seed(0)
    settings = [*ALL, f"output_gate={gate}", f"rope_fraction={fraction}", "head_dim=8"]
    mixer = small_model("window", *(f"model.mixers.window.{o}" for o in settings))
    mixer = mixer.blocks[0].mixer.double()
    for parameter in (mixer.sinks, mixer.q_norm.weight, mixer.k_norm.weight):
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, LENGTH, 32, dtype=torch.float64)
    segments = segments_of(LENGTH)
    info = SequenceInfo.of(x[..., 0], segments)

    def normed_and_turned(projection, norm, heads):
        y = projection(x).unflatten(-1, (heads, 8))
        y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
        turned = int(8 * fraction)
        rate = 10_000.0 ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
        angle = (info.positions[..., None] * rate)[:, :, None]
        pairs = torch.complex(y[..., : turned // 2], y[..., turned // 2 : turned])
        pairs = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((pairs.real, pairs.imag, y[..., turned:]), dim=-1)

    q = normed_and_turned(mixer.q, mixer.q_norm, 2)
    k = normed_and_turned(mixer.k, mixer.k_norm, 1)
    v = mixer.v(x).unflatten(-1, (1, 8))
    y = formula(q, k, v, segments, mixer.mask, mixer.sinks.expand(2, LENGTH, 2)).y.flatten(-2)
    if gate != "none":
        y = y * (F.silu if gate == "swish" else torch.sigmoid)(mixer.gate(x))
    assert torch.allclose(mixer(x, info)[0], mixer.out(y), atol=1e-5)


def test_a_new_sink_is_a_score_of_0():
    mixer = small_model("softmax", "model.mixers.softmax.sinks=true").blocks[0].mixer
    assert mixer.sinks.tolist() == [0, 0]


@torch.no_grad()
@pytest.mark.parametrize("layers", ["softmax", "window"])
def test_a_network_with_every_option_decodes_in_pieces_what_it_computes_at_once(layers):
    torch.manual_seed(0)
    network = small_model(layers, *(f"model.mixers.{layers}.{o}" for o in ALL)).eval()
    tokens = torch.randint(64, (2, 139))
    full = network(tokens)
    for pieces in ((1,) * 25, (37, 1, 29, 1, 1, 70), (138, 1)):
        cache, end = None, 0
        for piece in pieces:
            logits, cache = network.decode(tokens[:, end : end + piece], cache)
            end += piece
            assert torch.allclose(logits, full[:, end - 1], atol=3e-5)


def test_flops_count_the_output_gate():
    plain, gated = (
        small_model("softmax", *o) for o in ((), ("model.mixers.softmax.output_gate=swish",))
    )
    assert gated.flops_per_token(100) - plain.flops_per_token(100) == 2 * 32 * 32


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["rope_fraction=0.5", "rope_base=null"], "rope_fraction=0.5 with rope_base=null"),
        (["head_dim=20", "rope_fraction=0.25"], r"is 5 channels.*such as 0\.2"),
        (["head_dim=20", "rope_fraction=0.01"], r"is 0\.2 channels.*such as 0\.1"),
        (["head_dim=9"], "head_dim=9 is an odd head width"),
        (["rope_fraction=0"], "rope_fraction"),
        (["output_gate=tanh"], "output_gate"),
    ],
)
def test_options_that_make_no_sense_are_refused(overrides, reason):
    with pytest.raises(ValueError, match=reason):
        composed(*(f"model.mixers.softmax.{o}" for o in overrides))


def test_the_share_that_a_refusal_proposes_is_taken():
    # 1/3 of 6 channels as it is printed, in six digits.
    mixer = small_model(
        "softmax", "model.mixers.softmax.head_dim=6", "model.mixers.softmax.rope_fraction=0.333333"
    )
    assert mixer.blocks[0].mixer.turned == 2
