"""Every mixer: nothing from later tokens, other documents or other rows; gradients; 16 bits."""

import itertools

import pytest
import torch

from model.feature_maps import FEATURE_MAPS
from model.sequence import SequenceInfo
from tests.composing import small_model
from tests.model.family import EVERY_MIXER, LINEAR, documents, family_model, info_of, tokens_of

NORMALIZED = [name for name, chosen in FEATURE_MAPS.items() if chosen.sign != "signed"]
DECAYS = ("none", "alibi", "mamba2", "gla")  # one of each shape
WITH_DENOMINATOR = [
    (name, decay)
    for name, decay in itertools.product(NORMALIZED, DECAYS)
    if not (FEATURE_MAPS[name].sign == "kernel" and decay == "gla")  # refused
]


@EVERY_MIXER
@pytest.mark.parametrize("start", [80, 50])
def test_later_tokens_change_nothing_before_them(layers, start):
    """Inside a document, and where the later tokens are another document."""
    model = family_model(layers)
    segments = documents(129, 50, rows=2) if start == 50 else None
    tokens = tokens_of(2, 129)
    changed = tokens.clone()
    changed[:, start:] = tokens_of(2, 129 - start, seed=1)
    before, after = model(tokens, segments), model(changed, segments)
    assert torch.allclose(before[:, :start], after[:, :start], atol=1e-6, rtol=0)
    assert not torch.allclose(before[:, start:], after[:, start:], atol=1e-3)


@torch.no_grad()
@EVERY_MIXER
def test_large_later_inputs_change_nothing_before_them(layers):
    unmoved_by_large_inputs(family_model(layers).blocks[0].mixer)


@torch.no_grad()
@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_the_same_with_every_feature_map_and_a_head_that_forgets_nothing(feature_map):
    torch.manual_seed(0)
    model = small_model(
        "retnet",
        f"model.mixers.retnet.feature_map={feature_map}",
        f"model.mixers.retnet.normalize={str(feature_map in NORMALIZED).lower()}",
        "model.mixers.retnet.rope_base=null",
    )
    model.blocks[0].mixer.decay.log_decay[0] = 0
    unmoved_by_large_inputs(model.blocks[0].mixer)


def unmoved_by_large_inputs(mixer) -> None:
    torch.manual_seed(1)
    x, large = torch.randn(1, 129, 32), 100 * torch.randn(1, 129, 32)
    without_numbers = SequenceInfo.of(x[..., 0])
    for info, start in ((without_numbers, 80), (info_of(129), 80), (info_of(129, 50), 50)):
        changed = torch.cat((x[:, :start], large[:, start:]), dim=1)
        before, after = mixer(x, info)[0], mixer(changed, info)[0]
        assert torch.allclose(before[:, :start], after[:, :start], atol=1e-6, rtol=0)
        assert bool(torch.isfinite(after).all())


@torch.no_grad()
@EVERY_MIXER
def test_step_by_step_later_tokens_and_other_rows_do_not_change_a_bit(layers):
    model = family_model(layers).eval()
    tokens = tokens_of(2, 84)
    changed = tokens_of(2, 84, seed=1)
    changed[0, :80] = tokens[0, :80]

    def logits(tokens):
        _, cache = model.decode(tokens[:, :70])
        for t in range(70, 84):
            step, cache = model.decode(tokens[:, t : t + 1], cache)
            yield step[0]

    same = [torch.equal(a, b) for a, b in zip(logits(tokens), logits(changed), strict=True)]
    assert same == [True] * 10 + [False] * 4


@EVERY_MIXER
def test_document_b_is_unchanged_when_document_a_changes(layers):
    model = family_model(layers)
    tokens, segments = tokens_of(1, 129), documents(129, 50)
    changed = tokens.clone()
    changed[:, :50] = tokens_of(1, 50, seed=1)

    def output_and_gradients(tokens):
        embedded = []
        model.zero_grad()
        hook = model.embedding.register_forward_hook(
            lambda module, args, out: embedded.append(out) or out.retain_grad()
        )
        out = model(tokens, segments)[:, 50:]
        hook.remove()
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        return out, embedded[0].grad[:, 50:], embedded[0].grad[:, :50]

    out, inside, leaked = output_and_gradients(tokens)
    out_changed, inside_changed, _ = output_and_gradients(changed)
    assert torch.equal(out, out_changed)
    assert torch.equal(inside, inside_changed)
    assert not leaked.any()


@EVERY_MIXER
def test_a_document_is_the_same_alone_and_packed(layers):
    model = family_model(layers)
    tokens = tokens_of(1, 129)
    packed = model(tokens, documents(129, 50))
    assert torch.allclose(packed[:, :50], model(tokens[:, :50]), atol=2e-5)
    assert torch.allclose(packed[:, 50:], model(tokens[:, 50:]), atol=2e-5)


@torch.no_grad()
@EVERY_MIXER
def test_the_order_of_the_rows_is_that_of_the_outputs(layers):
    model = family_model(layers)
    tokens, order = tokens_of(3, 70), torch.tensor([2, 0, 1])
    segments = torch.cat((documents(70, 20, 21), documents(70), documents(70, 64)))
    moved = model(tokens[order], segments[order])
    assert torch.allclose(moved, model(tokens, segments)[order], atol=1e-6)


@EVERY_MIXER
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_gets_a_finite_gradient(layers, dtype):
    model = family_model(layers).to(dtype)
    out = model(tokens_of(2, 70), documents(70, 30, rows=2))
    assert out.dtype == dtype
    out.float().log_softmax(-1)[..., 0].sum().backward()
    for name, parameter in model.named_parameters():
        assert bool(torch.isfinite(parameter.grad).all()), name
        assert bool(parameter.grad.any()), name


@torch.no_grad()
@EVERY_MIXER
def test_a_16_bit_model_computes_what_its_weights_say(layers):
    """Decays and positions stay float32: only matrix products and inputs are rounded."""
    half = family_model(layers).to(torch.bfloat16)
    exact = family_model(layers)
    exact.load_state_dict({key: value.float() for key, value in half.state_dict().items()})
    tokens = tokens_of(2, 129)
    got, wanted = half.hidden(tokens).float(), exact.hidden(tokens)
    assert (got - wanted).norm() < 0.04 * wanted.norm()


@torch.no_grad()
@pytest.mark.parametrize("name", LINEAR)
def test_a_16_bit_model_has_float32_decays(name):
    half = family_model(name).to(torch.bfloat16)
    exact = family_model(name)
    exact.load_state_dict({key: value.float() for key, value in half.state_dict().items()})
    x = torch.randn(1, 3, 32)
    decays = half.blocks[0].mixer.decay(x.bfloat16()), exact.blocks[0].mixer.decay(x)
    if decays[0] is not None:
        assert decays[0].dtype == torch.float32
        assert torch.allclose(*decays, rtol=0.05, atol=1e-3)


@torch.no_grad()
def test_the_states_of_a_16_bit_retnet_fade_as_slowly_as_published():
    torch.manual_seed(0)
    options = ("model.mixers.retnet.heads=8", "model.mixers.retnet.conv_width=0")
    mixer = small_model("retnet", *options).blocks[0].mixer.bfloat16()
    impulse = torch.ones(1, 1, 32, dtype=torch.bfloat16)
    first, later = (
        SequenceInfo.of(torch.zeros(1, length), torch.zeros(1, length, dtype=torch.int64), *seen)
        for length, seen in ((1, ()), (4096, (torch.tensor([0]), torch.tensor([1]))))
    )
    _, start = mixer(impulse, first, keep_state=True)
    _, end = mixer(torch.zeros_like(impulse).expand(-1, 4096, -1), later, start, keep_state=True)
    written = start.recurrence.S[0]
    kept = (end.recurrence.S[0] * written).sum((1, 2)) / written.square().sum((1, 2))
    assert torch.allclose(kept[4:], torch.tensor([3.33e-4, 1.83e-2, 0.1353, 0.3678]), rtol=0.02)
    h = torch.arange(8, dtype=torch.float64)
    assert torch.allclose(kept.double(), (1 - 2.0 ** (-5 - h)) ** 4096, rtol=1e-3, atol=1e-20)


@pytest.mark.parametrize("start", [0, 2_000_000])
def test_rotary_angles_are_exact_far_into_a_document(start):
    tokens = torch.zeros(1, 32_768, dtype=torch.int64)
    info = SequenceInfo.of(tokens, tokens, torch.tensor([0]), torch.tensor([start]))
    cos, sin = info.rotation(64, 10_000.0)
    angle = (start + torch.arange(32_768, dtype=torch.float64))[:, None] * 10_000.0 ** (
        -torch.arange(0, 64, 2, dtype=torch.float64) / 64
    )
    assert (cos[0, :, 0].double() - angle.cos()).abs().max() < 1e-6
    assert (sin[0, :, 0].double() - angle.sin()).abs().max() < 1e-6
    assert (cos[0, 1000] - cos[0, 1001]).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize(("feature_map", "decay"), WITH_DENOMINATOR)
def test_with_a_denominator_values_of_1_give_1(feature_map, decay):
    """Whatever the weights are; where all of them are 0, the output is 0."""
    torch.manual_seed(0)
    options = {"feature_map": feature_map, "decay": decay}
    mixer = small_model(
        "linear", *(f"model.mixers.linear.{key}={value}" for key, value in options.items())
    ).blocks[0].mixer  # fmt: skip
    sums_to_1(mixer, may_be_empty=feature_map in ("relu", "squared_relu", "cosformer", "dpfp"))


@torch.no_grad()
@pytest.mark.parametrize("name", ["softmax", "window"])
def test_in_softmax_attention_values_of_1_give_1(name):
    torch.manual_seed(0)
    plain = [f"model.mixers.{name}.{option}" for option in ("conv_width=0", "recall_init=false")]
    sums_to_1(small_model(name, *plain).blocks[0].mixer, may_be_empty=False)


def sums_to_1(mixer, may_be_empty: bool) -> None:
    x = torch.randn(1, 129, 32)
    x[..., 0] = 1
    mixer.v.weight.zero_()
    mixer.v.weight[:, 0] = 1
    mixer.out.weight.copy_(torch.eye(32))
    y = mixer(x, info_of(129, 50))[0]
    seen = y != 0
    assert torch.allclose(y[seen], torch.ones(()), atol=1e-5)
    assert seen.float().mean() > 0.9 if may_be_empty else seen.all()
