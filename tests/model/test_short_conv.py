"""The short convolution: carried window, documents, gradients over chunks."""

import pytest
import torch
import torch.nn.functional as F

from model.layers import ShortConv


def conv(dim: int = 5, width: int = 4, silu: bool = True) -> ShortConv:
    module = ShortConv(dim, width, silu)
    torch.manual_seed(0)
    torch.nn.init.normal_(module.weight)
    return module


def reference(module: ShortConv, x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for t in range(x.shape[1]):
            for j in range(module.width):
                if t - j >= 0 and segments[row, t - j] == segments[row, t]:
                    y[row, t] += module.weight[j] * x[row, t - j]
    return F.silu(y) if module.silu else y


@pytest.mark.parametrize("silu", [True, False])
def test_taps_stay_inside_the_document(silu):
    module, x = conv(silu=silu), torch.randn(2, 12, 5)
    segments = torch.tensor([[0] * 5 + [1] * 1 + [2] * 6, [3] * 12])
    y, _ = module(x, segments)
    assert torch.allclose(y, reference(module, x, segments), atol=1e-6)
    alone, _ = module(x[1:], None)
    assert torch.equal(alone[0], y[1])


@pytest.mark.parametrize("prefill", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_steps_after_a_prefill_of_any_length_equal_one_call(prefill, width):
    module, x = conv(width=width), torch.randn(2, prefill + 8, 5)
    segments = torch.zeros(2, prefill + 8, dtype=torch.int64)
    full, _ = module(x, segments)
    outputs, state = [], None
    for start, end in [(0, prefill), *((t, t + 1) for t in range(prefill, prefill + 8))]:
        y, state = module(x[:, start:end], segments[:, start:end], state, keep_state=True)
        outputs.append(y)
    assert torch.allclose(torch.cat(outputs, dim=1), full, atol=1e-6)
    assert torch.equal(state.inputs, x[:, x.shape[1] - (width - 1) :])


def test_the_window_of_a_short_text_is_filled_with_zeros_on_the_left():
    _, state = conv()(torch.ones(1, 2, 5), None, keep_state=True)
    assert state.inputs[0, :, 0].tolist() == [0, 1, 1]
    assert state.segments.tolist() == [[-1, 0, 0]]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_gradients_through_two_chunks_equal_those_of_one_call(cut):
    module = conv()
    segments = torch.zeros(1, 10, dtype=torch.int64)
    x = torch.randn(1, 10, 5)
    whole, parts = (x.clone().requires_grad_() for _ in range(2))
    slope = torch.randn(1, 10, 5)

    y, _ = module(whole, segments)
    expected = torch.autograd.grad((y * slope).sum(), [whole, module.weight])
    first, state = module(parts[:, :cut], segments[:, :cut], keep_state=True)
    second, _ = module(parts[:, cut:], segments[:, cut:], state)
    got = torch.autograd.grad((torch.cat((first, second), 1) * slope).sum(), [parts, module.weight])
    for a, b in zip(got, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_carried_window_of_another_document_is_not_used():
    module, x = conv(), torch.randn(1, 9, 5)
    _, state = module(x[:, :4], torch.zeros(1, 4, dtype=torch.int64), keep_state=True)
    after, _ = module(x[:, 4:], torch.ones(1, 5, dtype=torch.int64), state)
    alone, _ = module(x[:, 4:], None)
    assert torch.equal(after, alone)


def test_delayed_channels_start_as_the_token_before():
    torch.manual_seed(0)
    module, x = ShortConv(6, 4, silu=False, delayed=2), torch.randn(1, 50, 6)
    module.init_weights()
    y, _ = module(x, None)
    assert (y[:, 1:, :2] - x[:, :-1, :2]).std() < 0.4
    assert (y[:, :, 2:] - x[:, :, 2:]).std() < 0.4
