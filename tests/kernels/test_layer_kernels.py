"""The kernels of the short convolution and the gated norm, interpreted, against float64."""

from collections.abc import Iterator

import pytest
import torch
from kernel_oracle import relative_error

from kernels import gated_norm, short_conv
from kernels.check_layers import Layer, layer_errors
from kernels.triton import layer_ops

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCES)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fills what is allocated and not yet written with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def single_tokens(length: int) -> torch.Tensor:
    """Document numbers with many documents of one token; the first continues the carried one."""
    index = torch.arange(length)
    return (3 + index // 3 + (index % 5 == 0).int()).cummax(0).values.expand(2, length)


def one(length: int) -> torch.Tensor:
    return torch.full((2, length), 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("length", "channels", "taps", "silu", "documents", "with_state"),
    [
        (1, 20, 2, True, one, False),
        (1, 1, 4, False, one, True),
        (2, 5, 4, True, single_tokens, True),
        (3, 96, 3, True, one, True),
        (15, 20, 4, True, single_tokens, False),
        (64, 5, 2, False, one, False),
        (65, 20, 3, True, single_tokens, True),
        (130, 5, 4, True, one, True),
        (7, 5, 1, True, one, True),
    ],
)
def test_the_convolution_equals_its_formula(
    length, channels, taps, silu, documents, with_state, dtype
) -> None:
    layer = Layer("short_conv", channels, taps, silu)
    errors = layer_errors(
        layer, dtype, length, segments=documents(length), with_state=with_state and taps > 1
    )
    assert max(errors.values()) <= TOLERANCES[dtype], errors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("length", "heads", "width", "swish"),
    [(1, 1, 3, True), (2, 3, 20, False), (3, 2, 64, True), (65, 2, 48, True), (130, 1, 130, False)],
)
def test_the_gated_norm_equals_its_formula(length, heads, width, swish, dtype) -> None:
    errors = layer_errors(Layer("gated_norm", width, heads, swish), dtype, length)
    assert max(errors.values()) <= TOLERANCES[dtype], errors


def test_rows_without_document_numbers_are_one_document() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 20, 5), torch.randn(4, 5)
    numbered = short_conv(x, weight, one(20), backend="triton")
    assert torch.equal(short_conv(x, weight, backend="triton"), numbered)


def test_pieces_with_carried_inputs_equal_the_whole() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 67, 6), torch.randn(4, 6)
    segments = 3 + (torch.rand(2, 67) < 0.1).long().cumsum(1)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    slope = torch.randn(x.shape)
    whole = short_conv(x, weight, segments, backend="triton")
    expected = (whole, *torch.autograd.grad((whole * slope).sum(), leaves))
    inputs, numbers, pieces = x.new_zeros(2, 3, 6), segments.new_full((2, 3), -1), []
    for begin, end in ((0, 37), (37, 38), (38, 67)):
        piece, documents = x[:, begin:end], segments[:, begin:end]
        pieces.append(short_conv(piece, weight, documents, inputs, numbers, backend="triton"))
        inputs = torch.cat((inputs, piece), 1)[:, -3:]
        numbers = torch.cat((numbers, documents), 1)[:, -3:]
    joined = torch.cat(pieces, 1)
    actual = (joined, *torch.autograd.grad((joined * slope).sum(), leaves))
    for a, b in zip(actual, expected, strict=True):
        assert relative_error(a, b) <= 1e-6


def test_no_number_of_another_document_is_used_and_reruns_are_bit_identical() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 40, 5), torch.randn(4, 5)
    segments = 3 + (torch.arange(40) >= 17).long()[None]
    broken = torch.where(segments[..., None] == 3, float("nan"), x)
    results = []
    for given in (x, x, broken):
        leaves = [given.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = short_conv(leaves[0], leaves[1], segments, backend="triton")
        results.append((y, *torch.autograd.grad(y.sin().sum(), leaves)))
    first, again, other = results
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(first[:2], other[:2], strict=True):
        assert torch.equal(a[:, 17:], b[:, 17:])


def test_views_and_16_bit_weights_are_taken_as_they_are() -> None:
    torch.manual_seed(0)
    o = torch.randn(2, 4, 9, 16).bfloat16().transpose(1, 2)
    gate, weight = torch.randn(2, 64, 9).bfloat16().mT, torch.randn(16).bfloat16()
    x, taps = torch.randn(2, 5, 9).mT, torch.randn(5, 3).bfloat16().T

    def call(backend):
        leaves = [tensor.detach().requires_grad_() for tensor in (o, weight, gate, x, taps)]
        y = gated_norm(*leaves[:3], "swish", 1e-6, backend)
        z = short_conv(*leaves[3:], backend=backend)
        return y, z, *torch.autograd.grad(y.float().sum() + z.sum(), leaves)

    for actual, expected in zip(call("triton"), call("torch"), strict=True):
        assert actual.dtype == expected.dtype
        assert relative_error(actual, expected) <= 1e-2


def test_the_convolutions_operators_keep_pytorchs_rules() -> None:
    torch.manual_seed(0)
    x, weight, inputs = torch.randn(2, 3, 2), torch.randn(2, 2), torch.randn(2, 1, 2)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, inputs)]
    given = (*leaves[:2], one(3), leaves[2], one(1), True)
    torch.library.opcheck(layer_ops.short_conv_forward, given)
    for state in ((one(3), inputs, one(1)), (None, None, None)):
        backward = (torch.randn_like(x), x, weight, *state, True)
        torch.library.opcheck(layer_ops.short_conv_backward, backward)


def test_the_gated_norms_operators_keep_pytorchs_rules() -> None:
    torch.manual_seed(0)
    o, weight, gate = torch.randn(2, 3, 2, 5), torch.randn(5), torch.randn(2, 3, 10)
    leaves = [tensor.clone().requires_grad_() for tensor in (o, weight, gate)]
    torch.library.opcheck(layer_ops.gated_norm_forward, (*leaves, True, 1e-6))
    backward = (torch.randn_like(gate), o, weight, gate, True, 1e-6)
    torch.library.opcheck(layer_ops.gated_norm_backward, backward)


def test_second_derivatives_are_refused() -> None:
    x = torch.randn(1, 4, 5, requires_grad=True)
    y = short_conv(x, torch.randn(3, 5), backend="triton")
    with pytest.raises(RuntimeError, match="short_conv has first derivatives only"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    z = gated_norm(x[:, :, None], torch.ones(5), x, "swish", 1e-6, "triton")
    with pytest.raises(RuntimeError, match="gated_norm has first derivatives only"):
        torch.autograd.grad(z.sum(), x, create_graph=True)


def test_the_kernels_cannot_be_transformed() -> None:
    x = torch.randn(1, 4, 5)
    calls = {
        "short_conv": lambda x: short_conv(x, torch.ones(3, 5), backend="triton"),
        "gated_norm": lambda x: gated_norm(
            x[:, :, None], torch.ones(5), x, "swish", 1e-6, "triton"
        ),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name} does not work under torch.func"):
            torch.func.jvp(call, (x,), (x,))


def test_a_norm_without_eps_has_gradients_however_many_rows_there_are() -> None:
    torch.manual_seed(0)
    o, weight, gate = torch.randn(2, 3, 2, 16), torch.randn(16), torch.randn(2, 3, 32)
    gradients = []
    for backend in ("torch", "triton"):
        leaves = [tensor.clone().requires_grad_() for tensor in (o, weight, gate)]
        y = gated_norm(*leaves, "swish", 0.0, backend)
        gradients.append(torch.autograd.grad(y.square().sum(), leaves))
    torch.testing.assert_close(*gradients)
