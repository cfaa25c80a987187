"""The gated short convolution against its formula. Documents and decoding: the family's suites."""

import pytest
import torch

from tests.composing import small_model
from tests.model.family import info_of


def formula(mixer, x: torch.Tensor) -> torch.Tensor:
    """float64 [T, d_model], token by token."""
    w = {name: value.double() for name, value in mixer.named_parameters()}
    v, gate = x @ w["v.weight"].T, x @ w["gate.weight"].T
    rows = []
    for t in range(len(x)):
        near = sum(taps * v[t - j] for j, taps in enumerate(w["conv.weight"]) if j <= t)
        rows.append(gate[t] / (1 + (-gate[t]).exp()) * near)
    return torch.stack(rows) @ w["out.weight"].T


@pytest.mark.parametrize(("taps", "expand"), [(3, 1.0), (1, 1.0), (4, 0.75), (7, 2.0)])
def test_outputs_and_gradients_equal_the_formula(taps, expand):
    torch.manual_seed(0)
    model = small_model(
        "conv", f"model.mixers.conv.conv_width={taps}", f"model.mixers.conv.expand={expand}"
    )
    mixer = model.blocks[0].mixer
    x, upstream = torch.randn(2, 23, 32).unbind()

    def gradients_of(y):
        return torch.autograd.grad(y, list(mixer.parameters()), upstream.to(y.dtype))

    whole, expected = mixer(x[None], info_of(23))[0][0], formula(mixer, x.double())
    torch.testing.assert_close(whole, expected.float(), atol=1e-5, rtol=1e-5)
    for found, wanted in zip(gradients_of(whole), gradients_of(expected), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("expand=0.7", r"expand=0.7 gives the width 22.4 .*; expand=0.6875 gives one"),
        ("expand=40000", r".*widths go up to 1048576: lower expand or d_model"),
    ],
)
def test_a_width_that_is_none_is_refused(given, said):
    with pytest.raises(ValueError, match=f"model.mixers.conv: {said}"):
        small_model("conv", f"model.mixers.conv.{given}")
