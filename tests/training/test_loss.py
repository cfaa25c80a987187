"""The chunked loss against torch's cross-entropy, values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from model.training.loss import chunked_cross_entropy


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_loss_and_gradients_equal_the_full_logits(chunk, z_loss):
    torch.manual_seed(0)
    hidden = torch.randn(53, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(31, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(31, (53,))
    labels[::5] = -100

    total, cross_entropy = chunked_cross_entropy(hidden, weight, labels, chunk, z_loss)
    got = torch.autograd.grad(total * 0.3, [hidden, weight])

    logits = hidden @ weight.T
    expected_cross_entropy = F.cross_entropy(logits, labels, reduction="sum")
    penalty = (logits.logsumexp(-1).square() * (labels != -100)).sum()
    expected_total = expected_cross_entropy + z_loss * penalty
    expected = torch.autograd.grad(expected_total * 0.3, [hidden, weight])

    assert float(cross_entropy) == pytest.approx(float(expected_cross_entropy), rel=1e-6)
    assert float(total) == pytest.approx(float(expected_total), rel=1e-6)
    for a, b in zip(got, expected, strict=True):
        assert (a - b).norm() / b.norm() < 1e-6


def test_no_target_costs_nothing_and_moves_nothing():
    hidden = torch.randn(5, 8, requires_grad=True)
    weight = torch.randn(9, 8, requires_grad=True)
    total, _ = chunked_cross_entropy(hidden, weight, torch.full((5,), -100), 2, 1e-3)
    total.backward()
    assert total.item() == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_autocast_uses_16_bit_products():
    torch.manual_seed(0)
    hidden = torch.randn(20, 8, requires_grad=True)
    weight = torch.randn(9, 8, requires_grad=True)
    labels = torch.randint(9, (20,))
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = chunked_cross_entropy(hidden, weight, labels, 8)
    total.backward()
    full = F.cross_entropy(hidden @ weight.T, labels, reduction="sum")
    assert hidden.grad.dtype == torch.float32
    assert total.item() != full.item()
    assert total.item() == pytest.approx(full.item(), rel=1e-2)
