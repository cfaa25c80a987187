"""Every mistake in a call of the layers has one clear error; `auto` on a CPU is the torch form."""

import pytest
import torch
import triton

from kernels import gated_norm, short_conv

X, WEIGHT = torch.ones(2, 5, 6), torch.ones(4, 6)
SEGMENTS = torch.zeros(2, 5, dtype=torch.long)
INPUTS, NUMBERS = torch.zeros(2, 3, 6), torch.zeros(2, 3, dtype=torch.long)
HEADS, SCALE, GATE = torch.ones(2, 5, 3, 4), torch.ones(4), torch.ones(2, 5, 12)

CONVOLUTIONS = {
    "rank": ({"x": X[0]}, r"expected x \[B, T, D\]"),
    "channels": ({"weight": WEIGHT[:, 1:]}, r"got \(2, 5, 6\) and \(4, 5\)"),
    "integers": ({"x": X.long()}, "x is torch.int64"),
    "segments_shape": ({"segments": SEGMENTS[:, 1:]}, r"segments has shape \(2, 4\).*\(2, 5\)"),
    "segments_dtype": ({"segments": SEGMENTS.float()}, "segments is torch.float32"),
    "segments_device": ({"segments": SEGMENTS.to("meta")}, "segments lies on meta"),
    "no_numbers": ({"segments": SEGMENTS, "state_inputs": INPUTS}, "state_segments is None"),
    "no_segments": (
        {"state_inputs": INPUTS, "state_segments": NUMBERS},
        "given without segments: pass None",
    ),
    "no_state": ({"state_segments": NUMBERS}, "given without segments and state_inputs"),
    "state_shape": ({"state_inputs": INPUTS[:, 1:]}, r"\[B, W - 1, D\] = \(2, 3, 6\)"),
    "backend": ({"backend": "reference"}, r"use one of \['auto', 'torch', 'triton'\]"),
    "taps": ({"weight": torch.ones(5, 6), "backend": "triton"}, "at most 4 taps, got 5"),
    "float64": ({"x": X.double(), "backend": "triton"}, "has no float64; use backend='torch'"),
    "no_tensor": ({"weight": WEIGHT.tolist()}, "weight must be a torch.Tensor, got list"),
    "sparse": ({"state_inputs": INPUTS.to_sparse()}, "state_inputs is a sparse_coo tensor"),
    "unsigned": ({"segments": SEGMENTS.to(torch.uint32)}, "must be a signed integer tensor"),
    "silu": ({"silu": "no"}, "silu must be True or False, got 'no'"),
}
NORMS = {
    "o": ({"o": HEADS[..., 0]}, r"expected o \[..., H, V\]"),
    "gate": ({"gate": GATE[..., 1:]}, r"gate \(2, 5, 11\)"),
    "weight": ({"weight": SCALE[1:]}, r"weight \(3,\)"),
    "integers": ({"gate": GATE.long()}, "must be floating point"),
    "devices": ({"weight": SCALE.to("meta")}, "different devices: cpu, meta, cpu"),
    "activation": ({"activation": "relu"}, r"use one of \['swish', 'sigmoid'\]"),
    "float64": ({"o": HEADS.double(), "backend": "triton"}, "has no float64"),
    "float64_weight": ({"weight": SCALE.double(), "backend": "triton"}, "has no float64"),
    "no_tensor": ({"gate": None}, "gate must be a torch.Tensor, got NoneType"),
    "eps_type": ({"eps": "1e-6"}, "eps must be a finite number >= 0, got '1e-6'"),
    "eps_sign": ({"eps": -1.0}, "eps must be a finite number >= 0, got -1.0"),
    "eps_nan": ({"eps": float("nan")}, "eps must be a finite number >= 0, got nan"),
}


@pytest.mark.parametrize(("changes", "message"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_wrong_convolution_is_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        short_conv(**{"x": X, "weight": WEIGHT, **changes})


@pytest.mark.parametrize(("changes", "message"), NORMS.values(), ids=NORMS)
def test_a_wrong_gated_norm_is_refused(changes, message) -> None:
    given = {"o": HEADS, "weight": SCALE, "gate": GATE, "activation": "swish", "eps": 1e-6}
    with pytest.raises(ValueError, match=message):
        gated_norm(**{**given, **changes})


def test_on_a_cpu_the_kernels_run_only_in_the_interpreter_and_on_request(monkeypatch) -> None:
    calls = {
        "short_conv": lambda **options: short_conv(X, WEIGHT, **options),
        "gated_norm": lambda **options: gated_norm(HEADS, SCALE, GATE, "swish", 1e-6, **options),
    }
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    for call in calls.values():
        assert torch.equal(call(), call(backend="torch"))
        with pytest.raises(ValueError, match="backend='triton' runs on GPUs"):
            call(backend="triton")
