"""Every feature map against its formula in float64: kernels, signs, 16 bits, gradients."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from kernels import linear_attention
from model.feature_maps import FEATURE_MAPS, build_feature_map
from model.feature_maps.base import Mapped
from model.feature_maps.elementary import elu1
from model.linear_config import LinearSettings
from model.pattern import Depth
from model.sequence import SequenceInfo
from tests.composing import composed, small_model
from tests.model.mixer_oracle import ELEMENTARY

HEADS, DIM, LENGTH = 2, 8, 75
MAPS = pytest.mark.parametrize("name", FEATURE_MAPS)
NORMALIZED = [name for name, chosen in FEATURE_MAPS.items() if chosen.sign != "signed"]


def settings_of(name: str, **changes) -> LinearSettings:
    plain = composed().model.mixers["linear"].model_dump()
    changes = {"feature_map": name, "heads": HEADS, "normalize": name in NORMALIZED} | changes
    return LinearSettings.model_validate(plain | changes)


def feature_map(name: str, dim: int = DIM, **changes) -> torch.nn.Module:
    """A map with weights away from where they start."""
    torch.manual_seed(1)
    built = build_feature_map(name, settings_of(name, **changes), HEADS, dim, Depth(0, 1))
    if hasattr(built, "init_weights"):
        built.init_weights()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return built


def elementary(function):
    return lambda phi, q, k, distance: function(q) @ function(k).mT


def of_exponents(logits):
    """sum_i exp(logits of q + logits of k) as a matrix [.., query, key]."""
    return lambda phi, q, k, distance: (
        (logits(phi, q, "q")[..., :, None, :] + logits(phi, k, "k")[..., None, :, :]).exp().sum(-1)
    )


def favor_logits(phi, x, _):
    x, w = x * DIM**-0.25, phi.projection.double()
    return x @ w.T - x.square().sum(-1, keepdim=True) / 2 - math.log(len(w)) / 2


def hedgehog_logits(phi, x, side):
    weight, bias = (getattr(phi, f"{part}_{side}").double() for part in ("weight", "bias"))
    y = x @ weight.mT + bias[:, None]
    return torch.cat((y, -y), dim=-1)


def taylor_kernel(phi, q, k, distance):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return 1 + s + s**2 / 2


def cosformer_kernel(phi, q, k, distance):
    return F.relu(q) @ F.relu(k).mT * torch.cos(math.pi / 2 * distance / phi.max_length)


def dpfp_vector(x):
    r = torch.cat((F.relu(x), F.relu(-x)), -1)
    n = r.shape[-1]
    return torch.stack([r[..., i] * r[..., i - s] for s in (1, 2, 3) for i in range(n)], -1)


# The kernel matrix of q and k, float64 [H, T, D], by the formulas of docs/mathematics.md.
KERNELS = {
    **{name: elementary(function) for name, function in ELEMENTARY.items()},
    "exp": of_exponents(lambda phi, x, _: x),
    "favor": of_exponents(favor_logits),
    "taylor": taylor_kernel,
    "cosformer": cosformer_kernel,
    "hedgehog": of_exponents(hedgehog_logits),
    "dpfp": elementary(dpfp_vector),
}
OPTIONS = {"dpfp": {"dpfp_nu": 3}, "cosformer": {"max_length": 90}}


def vectors(length=LENGTH, size=1.0, rows=1):
    """q, k, v as leaves, float32 [B, T, H, D]."""
    torch.manual_seed(0)
    q, k, v = size * torch.randn(3, rows, length, HEADS, DIM)
    return [x.requires_grad_() for x in (q, k, v / size)]


def attention(phi, q, k, v, info, normalize):
    mapped: Mapped = phi(q, k, info)
    return linear_attention(
        mapped.q, mapped.k, v, mapped.log_decay, normalize=normalize, segments=info.segments
    )[0]


def formula(name, phi, q, k, v, documents):
    """The same from the kernel's formula, float64, document by document."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    outputs = []
    for start, end in pairwise(documents):
        at = torch.arange(end - start)
        distance = at[:, None] - at
        weights = KERNELS[name](phi, *(x[0, :, start:end] for x in (q, k)), distance).tril()
        if name in NORMALIZED:
            total = weights.sum(-1, keepdim=True)
            weights = weights / total.where(total > 0, 1)
        outputs.append(weights @ v[0, :, start:end])
    return torch.cat(outputs, dim=1).transpose(0, 1)[None]


@MAPS
@pytest.mark.parametrize("documents", [(0, LENGTH), (0, 40, 41, LENGTH)])
@pytest.mark.parametrize("size", [1.0, 6.0])
def test_outputs_and_gradients_are_those_of_the_kernel(name, documents, size):
    phi = feature_map(name, **OPTIONS.get(name, {}))
    leaves = vectors(size=size)
    segments = None
    if len(documents) > 2:
        segments = torch.bucketize(torch.arange(LENGTH), torch.tensor(documents[1:]), right=True)
    info = SequenceInfo.of(torch.zeros(1, LENGTH), segments if segments is None else segments[None])
    got = attention(phi, *leaves, info, name in NORMALIZED)
    wanted = formula(name, phi, *leaves, documents)
    slope = torch.randn(wanted.shape)
    tensors = [*leaves, *phi.parameters()]
    gradients = torch.autograd.grad((got * slope).sum(), tensors)
    expected = torch.autograd.grad((wanted * slope).sum(), tensors)
    for a, b in zip((got, *gradients), (wanted, *expected), strict=True):
        assert (a - b).norm() <= 2e-5 * b.norm()


@MAPS
def test_features_and_kernels_have_the_sign_that_is_declared(name):
    phi = feature_map(name, **OPTIONS.get(name, {}))
    sign = FEATURE_MAPS[name].sign
    for size in (0.1, 1, 5, 30):
        q, k, _ = vectors(size=size)
        mapped = phi(q, k, SequenceInfo.of(torch.zeros(1, LENGTH)))
        assert phi.features == mapped.q.shape[-1] == mapped.k.shape[-1]
        weights = torch.einsum("bihf,bjhf->bhij", mapped.q.double(), mapped.k.double())
        if sign == "features":
            assert min(mapped.q.min(), mapped.k.min()) >= 0
        elif sign == "kernel":
            lengths = [x.double().norm(dim=-1).max() for x in (mapped.q, mapped.k)]
            assert weights.min() >= 0.5 - 1e-7 * lengths[0] * lengths[1]
            assert mapped.q.min() < 0
        else:
            assert weights.min() < 0


@pytest.mark.parametrize("name", NORMALIZED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_of_1_give_1_where_there_is_a_weight(name, dtype):
    phi = feature_map(name)
    for size in (1, 10):
        q, k, v = (x.detach().to(dtype) for x in vectors(size=size))
        info = SequenceInfo.of(torch.zeros(1, LENGTH))
        out = attention(phi, q, k, torch.ones_like(v), info, True).float()
        seen = out != 0
        assert torch.allclose(
            out[seen], torch.ones(()), atol=1e-5 if dtype == torch.float32 else 1e-2
        )
        may_be_empty = name in ("relu", "squared_relu", "cosformer", "dpfp", "favor")
        assert seen.float().mean() > 0.9 if may_be_empty else seen.all()


@pytest.mark.parametrize("name", [n for n, chosen in FEATURE_MAPS.items() if chosen.elementary])
def test_elementary_maps_keep_the_digits_of_bfloat16(name):
    x = torch.linspace(-10, 10, 4001)[:, None] * torch.tensor([1, 0.5, 0, 0.1])
    x = x.bfloat16()
    wanted = ELEMENTARY[name](x.double())
    got = feature_map(name, dim=4).function(x)
    assert got.dtype == torch.bfloat16
    assert ((got.double() - wanted).abs() <= 2**-7 * wanted.abs()).all()


@MAPS
def test_bfloat16_outputs_are_those_of_the_kernel_from_minus_10_to_10(name):
    phi = feature_map(name, **OPTIONS.get(name, {}))
    q, k, v = (x.bfloat16() for x in (sweep(), sweep().flip(1, 3), sweep().cos()))
    got = attention(phi, q, k, v, SequenceInfo.of(q[..., 0, 0]), name in NORMALIZED)
    wanted = formula(name, phi, q, k, v, (0, LENGTH))
    assert got.dtype == torch.bfloat16
    assert (got - wanted).norm() < 4e-3 * wanted.norm()  # bfloat16 itself is 2e-3 off


def sweep() -> torch.Tensor:
    return torch.linspace(-10, 10, LENGTH * HEADS * DIM).view(1, LENGTH, HEADS, DIM)


@MAPS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_outputs_and_gradients_are_finite_from_minus_10_to_10(name, dtype):
    phi = feature_map(name)
    leaves = [x.to(dtype).requires_grad_() for x in (sweep(), sweep().flip(1), sweep().cos())]
    info = SequenceInfo.of(torch.zeros(1, LENGTH))
    out = attention(phi, *leaves, info, name in NORMALIZED)
    tensors = [*leaves, *phi.parameters()]
    gradients = torch.autograd.grad(out.float().square().sum(), tensors)
    assert all(bool(torch.isfinite(x).all()) for x in (out, *gradients))


def test_elu1_does_not_cancel():
    x = torch.tensor([-6.0], dtype=torch.bfloat16)
    assert float(elu1(x)) == pytest.approx(math.exp(-6), rel=4e-3)
    assert abs(float(F.elu(x) + 1) / math.exp(-6) - 1) > 0.5


def test_taylor_stores_every_pair_once():
    assert feature_map("taylor", dim=16).features == 153


def test_taylor_stays_positive_in_bfloat16_up_to_the_length_that_it_states():
    torch.manual_seed(0)
    q, k = math.sqrt(15) * 16**0.25 * F.normalize(torch.randn(2, 1, 500, 1, 16), dim=-1)
    mapped = feature_map("taylor", dim=16)(q.bfloat16(), k.bfloat16(), None)
    weights = mapped.q[0, :, 0].double() @ mapped.k[0, :, 0].double().T
    assert 0 < weights.min() < 1


def test_too_many_features_are_refused_with_what_to_change():
    with pytest.raises(ValueError, match=r"taylor makes 525,825 features .* of 1024 channels"):
        small_model("taylor", "model.d_model=4096")
    with pytest.raises(ValueError, match=r"dpfp_nu=32 .* give 1 to 31"):
        small_model("dpfp", "model.mixers.dpfp.dpfp_nu=32")


@pytest.mark.parametrize("name", ["exp", "favor", "hedgehog"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_running_maximum_is_carried_from_piece_to_piece(name, packed):
    phi = feature_map(name)
    q, k, _ = (x.detach() for x in vectors(size=5.0, rows=2))
    segments = torch.zeros(2, LENGTH, dtype=torch.long)
    if packed:
        segments[0, 30:], segments[1, 59:] = 1, 2
    info = SequenceInfo.of(segments, segments)
    whole, state = phi(q, k, info), None
    for start, end in pairwise((0, 1, 2, 30, 58, 60, LENGTH)):
        at = slice(start, end)
        piece = phi(q[:, at], k[:, at], SequenceInfo.of(segments[:, at], segments[:, at]), state)
        state = piece.state
        assert torch.allclose(piece.k, whole.k[:, at], rtol=1e-5)
        assert torch.allclose(piece.log_decay, whole.log_decay[:, at], atol=1e-5)
    assert whole.log_decay.max() == 0
    assert torch.allclose(state.maximum, whole.state.maximum, rtol=1e-6)


def test_only_decays_of_the_running_maximum_are_added_and_only_where_needed():
    assert feature_map("exp", qk_norm=True).state_bytes == 0
    q, k, _ = vectors()
    info = SequenceInfo.of(torch.zeros(1, LENGTH))
    alone = feature_map("exp", qk_norm=True)(q, k, info)
    assert alone.log_decay is None
    unit = F.normalize(alone.k, dim=-1)
    assert torch.allclose(unit, F.normalize(k.double().exp(), dim=-1).float(), atol=1e-6)


@pytest.mark.parametrize("name", ["exp", "favor", "hedgehog"])
def test_what_is_no_key_leaves_the_maximum_alone(name):
    """As where no token has entered a state yet, in whole rows and in pieces."""
    phi = feature_map(name)
    q, k, _ = (x.detach() for x in vectors())
    exists = torch.ones(*k.shape[:3], dtype=torch.bool)
    exists[:, :9] = exists[:, 40:42] = False
    numbers = torch.zeros(k.shape[:2], dtype=torch.long)
    info = SequenceInfo.of(numbers, numbers)
    plain = phi(q, k, info, None, exists)
    other = k.masked_fill(~exists[..., None], 50.0)
    assert all(
        torch.equal(a, b)
        for a, b in zip(plain[:3], phi(q, other, info, None, exists)[:3], strict=True)
    )
    assert not plain.k[~exists].any()
    state = None
    for start, end in pairwise((0, 4, 5, 20, 41, LENGTH)):
        at = slice(start, end)
        some = SequenceInfo.of(numbers[:, at], numbers[:, at])
        piece = phi(q[:, at], k[:, at], some, state, exists[:, at])
        state = piece.state
        assert torch.allclose(piece.k, plain.k[:, at], rtol=1e-5)
        assert torch.allclose(piece.log_decay, plain.log_decay[:, at], atol=1e-5)
    wanted = k.clone().requires_grad_()
    phi(q, wanted, info, None, exists).k.sum().backward()
    assert bool(torch.isfinite(wanted.grad).all())
    assert not wanted.grad[~exists].any()


@pytest.mark.parametrize("size", [80.0, 90.0, 100.0, 110.0])
def test_keys_that_no_weight_reaches_leave_gradients_finite(size):
    """exp(-size) is what the only weights are, relative to the largest features."""
    phi = feature_map("exp", dim=2)
    q, k = (torch.zeros(1, 3, HEADS, 2) for _ in "qk")
    q[..., 0] = k[..., 1] = size
    q, k = q.requires_grad_(), k.requires_grad_()
    v = torch.randn(1, 3, HEADS, 4, requires_grad=True)
    mapped = phi(q, k, SequenceInfo.of(torch.zeros(1, 3)))
    y, _ = linear_attention(mapped.q, mapped.k, v, mapped.log_decay, normalize=True)
    assert all(bool(x.isfinite().all()) for x in torch.autograd.grad(y.sum(), [q, k, v]))
