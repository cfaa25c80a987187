"""Every mistake a caller can make has one clear error, raised before any work."""

import importlib.util
import math

import pytest
import torch
import triton
from torch.autograd import forward_ad

from kernels import LinearState, linear_attention

B, T, H, K, V = 2, 5, 3, 4, 6
S = torch.zeros(B, H, K, V)
Z = torch.zeros(B, H, K)
SEGMENTS = torch.zeros(B, T, dtype=torch.long)
SEGMENT = torch.zeros(B, dtype=torch.long)
KEYS = torch.zeros(B, T, H, K)
VALUES = torch.zeros(B, T, H, V)
BETA = torch.zeros(B, T, H)

MISTAKES = {
    "q_rank": ({"q": torch.zeros(B, T, K)}, r"expected q and k \[B, T, H, K\]"),
    "k_shape": ({"k": torch.zeros(B, T, H, K + 1)}, r"expected q and k \[B, T, H, K\]"),
    "v_length": ({"v": torch.zeros(B, T + 1, H, V)}, r"v \(2, 6, 3, 6\)"),
    "no_width": ({"v": torch.zeros(B, T, H, 0)}, "must be at least 1"),
    "mixed_dtypes": ({"v": VALUES.bfloat16()}, "share one dtype"),
    "integer_inputs": (
        {"q": KEYS.long(), "k": KEYS.long(), "v": VALUES.long()},
        "share one dtype",
    ),
    "k_device": ({"k": KEYS.to("meta")}, "q, k, v lie on different devices: cpu, meta"),
    "tensor_scale": ({"scale": torch.tensor(2.0)}, "scale must be a Python number"),
    "beta_shape": ({"beta": torch.zeros(B, T)}, r"beta has shape \(2, 5\); it must be \[B, T, H\]"),
    "beta_dtype": ({"beta": BETA.half()}, "beta is torch.float16.*must be torch.float32"),
    "beta_device": ({"beta": BETA.to("meta")}, "beta lies on meta"),
    "beta_normalized": ({"beta": BETA, "normalize": True}, "normalize=True is given with beta"),
    "triton_beta": (
        {**dict.fromkeys("qk", torch.zeros(B, T, H, 257)), "beta": BETA, "backend": "triton"},
        "takes at most K = 256, got 257; use backend='torch' or 'auto'",
    ),
    "decay_shape": ({"decay": torch.zeros(B, T)}, r"decay has shape \(2, 5\).*\[B, T, H, K\]"),
    "decay_heads": ({"decay": torch.zeros(T)}, r"\[H\] = \(3,\)"),
    "decay_dtype": ({"decay": torch.zeros(H).bfloat16()}, "must be torch.float32"),
    "decay_device": ({"decay": torch.zeros(H, device="meta")}, "decay lies on meta"),
    "segments_shape": ({"segments": SEGMENT}, r"segments has shape \(2,\)"),
    "segments_dtype": ({"segments": SEGMENTS.float()}, "must be a signed integer tensor"),
    "segments_unsigned": ({"segments": SEGMENTS.to(torch.uint32)}, "must be a signed integer"),
    "segments_device": ({"segments": SEGMENTS.to("meta")}, "segments lies on meta"),
    "state_type": ({"state": (S, None, None)}, "must be a kernels.LinearState"),
    "missing_z": (
        {"normalize": True, "state": LinearState(S, None, None)},
        "needs state.z",
    ),
    "unexpected_z": ({"state": LinearState(S, Z, None)}, "state.z is given but normalize is False"),
    "missing_segment": (
        {"segments": SEGMENTS, "state": LinearState(S, None, None)},
        "state.segment is None",
    ),
    "unexpected_segment": (
        {"state": LinearState(S, None, SEGMENT)},
        "segments is None",
    ),
    "state_shape": ({"state": LinearState(S[:1], None, None)}, r"\[B, H, K, V\] = \(2, 3, 4, 6\)"),
    "state_dtype": ({"state": LinearState(S.half(), None, None)}, "must be torch.float32"),
    "z_shape": (
        {"normalize": True, "state": LinearState(S, Z[..., :1], None)},
        r"state.z has shape \(2, 3, 1\)",
    ),
    "z_dtype": (
        {"normalize": True, "state": LinearState(S, Z.double(), None)},
        "state.z is torch.float64",
    ),
    "segment_shape": (
        {"segments": SEGMENTS, "state": LinearState(S, None, SEGMENTS)},
        "state.segment has shape",
    ),
    "segment_dtype": (
        {"segments": SEGMENTS, "state": LinearState(S, None, SEGMENT.bool())},
        "state.segment is torch.bool",
    ),
    "chunk_zero": ({"chunk_size": 0}, "chunk_size must be a whole number >= 1"),
    "chunk_float": ({"chunk_size": 64.0}, "chunk_size must be a whole number >= 1"),
    "chunk_of_many_digits": ({"chunk_size": 10**400}, "chunk_size must be a whole number >= 1"),
    "unknown_backend": ({"backend": "cuda"}, "use one of"),
    "backend_type": ({"backend": []}, r"backend=\[\] is unknown; use one of"),
    "normalize_type": ({"normalize": "no"}, "normalize must be True or False, got 'no'"),
    "scale_of_many_digits": ({"scale": 10**400}, "got a whole number of more than 40 digits"),
    "scale_nan": ({"scale": math.nan}, "scale must be finite and at most 3.4.*got nan"),
    "scale_inf": ({"scale": -math.inf}, "scale must be finite and at most 3.4.*got -inf"),
    "scale_bool": ({"scale": True}, "scale must be a Python number, got bool"),
    "q_none": ({"q": None}, "q must be a torch.Tensor, got NoneType"),
    "k_list": ({"k": [1.0]}, "k must be a torch.Tensor, got list"),
    "v_numpy": ({"v": VALUES.numpy()}, "v must be a torch.Tensor, got ndarray"),
    "decay_number": ({"decay": -0.1}, "decay must be a torch.Tensor or None, got float"),
    "beta_type": ({"beta": "1"}, "beta must be a torch.Tensor or None, got str"),
    "segments_list": ({"segments": [[0]]}, "segments must be a torch.Tensor or None, got list"),
    "state_of_none": ({"state": LinearState(None, None, None)}, "state.S must be a torch.Tensor"),
    "z_list": ({"state": LinearState(S, [1], None)}, "state.z must be a torch.Tensor or None"),
    "sparse": ({"decay": torch.zeros(H).to_sparse()}, "decay is a sparse_coo tensor"),
    "no_data": ({name: KEYS.to("meta") for name in "qkv"}, "meta device, which holds no data"),
    "complex": ({name: KEYS.cfloat() for name in "qkv"}, "share one dtype"),
    "decay_integer": ({"decay": torch.zeros(H).int()}, "decay is torch.int32"),
    "beta_complex": ({"beta": BETA.cfloat()}, "beta is torch.complex64"),
    "triton_float64": (
        {"backend": "triton", "q": KEYS.double(), "k": KEYS.double(), "v": VALUES.double()},
        "has no float64; use backend='torch'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_explained(mistake: str) -> None:
    changes, message = MISTAKES[mistake]
    arguments = {"q": KEYS, "k": KEYS, "v": VALUES, **changes}
    with pytest.raises(ValueError, match=message):
        linear_attention(**arguments)


@pytest.mark.parametrize(("backend", "beta"), [("torch", None), ("torch", BETA), ("triton", None)])
def test_a_second_derivative_is_refused_where_there_is_none(
    backend: str, beta: torch.Tensor | None
) -> None:
    q = torch.randn(B, T, H, K, requires_grad=True)
    loss = linear_attention(q, KEYS, VALUES, beta=beta, backend=backend)[0].sum()
    with pytest.raises(RuntimeError, match=r"first derivatives only.*or backend='reference'"):
        torch.autograd.grad(loss, q, create_graph=True)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_only_the_reference_can_be_transformed(backend: str) -> None:
    values = torch.randn(B, T, H, V)

    def total(v: torch.Tensor, backend: str) -> torch.Tensor:
        return linear_attention(KEYS + 1, KEYS + 1, v, backend=backend)[0].sum()

    with pytest.raises(ValueError, match=r"under torch\.func .*: use backend='reference'"):
        torch.func.grad(total)(values, backend)
    with (
        forward_ad.dual_level(),
        pytest.raises(ValueError, match="no forward-mode derivatives: use backend='reference'"),
    ):
        total(forward_ad.make_dual(values, torch.ones_like(values)), backend)
    with forward_ad.dual_level():  # constants may be there
        assert total(values, backend) == total(values, "reference")
    slope = torch.func.grad(total)(values, "reference")
    with forward_ad.dual_level():
        moved = total(forward_ad.make_dual(values, torch.ones_like(values)), "reference")
        torch.testing.assert_close(forward_ad.unpack_dual(moved).tangent, slope.sum())


def test_the_reference_has_second_derivatives() -> None:
    q = torch.randn(B, T, H, K, requires_grad=True)
    loss = linear_attention(q, q, VALUES + 1, backend="reference")[0].sum()
    (gradient,) = torch.autograd.grad(loss, q, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), q)
    assert bool(second.any())


def test_triton_on_a_cpu_is_refused_unless_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(ValueError, match="runs on GPUs, and the tensors lie on the CPU"):
        linear_attention(KEYS, KEYS, VALUES, backend="triton")


def test_machines_without_triton_are_told_and_use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the triton package"):
        linear_attention(KEYS, KEYS, VALUES, backend="triton")
    out, _ = linear_attention(KEYS, KEYS, VALUES)
    assert torch.equal(out, linear_attention(KEYS, KEYS, VALUES, backend="torch")[0])
