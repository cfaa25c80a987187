"""RMSNorm: the form for CPUs and torch's own, against the formula in float64."""

import pytest
import torch

from kernels.norms import _RMSNormOnCPU
from model.layers import RMSNorm


def formula(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_outputs_and_gradients_equal_the_formula(dtype, size):
    torch.manual_seed(0)
    norm = RMSNorm(16, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    x = (torch.randn(3, 5, 16) * size).to(dtype).requires_grad_()
    y = norm(x)
    assert y.dtype == dtype
    exact_x = x.detach().double().requires_grad_()
    exact_weight = norm.weight.detach().double().requires_grad_()
    expected = formula(exact_x, exact_weight, 1e-6)
    upstream = torch.randn(y.shape).to(dtype)
    gradients = torch.autograd.grad(y, (x, norm.weight), upstream)
    exact = torch.autograd.grad(expected, (exact_x, exact_weight), upstream.double())
    budget = 1e-6 if dtype == torch.float32 else 4e-3
    for got, wanted in zip((y, *gradients), (expected, *exact), strict=True):
        assert (got - wanted).norm() <= budget * wanted.norm()


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
def test_first_and_second_derivatives(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def norm(x, weight):
        return _RMSNormOnCPU.apply(x, weight, 1e-3)[0]

    assert torch.autograd.gradcheck(norm, (x, weight))
    assert torch.autograd.gradgradcheck(norm, (x, weight))


def test_gradients_are_as_exact_when_taken_under_autocast():
    torch.manual_seed(0)
    norm = RMSNorm(16, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 16, requires_grad=True)
    (exact,) = torch.autograd.grad(norm(x).pow(3).sum(), x)
    with torch.autocast("cpu", torch.bfloat16):
        (gradient,) = torch.autograd.grad(norm(x).pow(3).sum(), x)
    assert torch.equal(gradient, exact)


def test_function_transforms_see_it():
    torch.manual_seed(0)
    norm = RMSNorm(16, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(4, 16)
    per_row = torch.func.vmap(torch.func.grad(lambda row: norm(row).pow(3).sum()))(x)
    whole = torch.func.grad(lambda x: norm(x).pow(3).sum())(x)
    assert torch.allclose(per_row, whole, atol=1e-6)


def test_compiled_and_eager_agree():
    torch.manual_seed(0)
    norm = RMSNorm(16, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 16)
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), norm(x), atol=1e-6, rtol=1e-6)
