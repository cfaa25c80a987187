"""Short causal depthwise convolution over time, whose taps never leave the document.

One function for both forms: plain PyTorch, and Triton kernels (kernels/triton/convolution.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.derivatives import refuse_transforms
from kernels.triton_backend import takes_triton
from kernels.validation import check_dense, check_flag, check_numbers

MOST_TAPS = 4  # backwards, all taps and their sums are in registers: 8 would not fit


def short_conv(
    x: Tensor,
    weight: Tensor,
    segments: Tensor | None = None,
    state_inputs: Tensor | None = None,
    state_segments: Tensor | None = None,
    silu: bool = True,
    backend: str = "auto",
) -> Tensor:
    """y_t = silu(sum_j weight_j x_{t-j}), j = 0 .. W - 1, or without the silu, over T tokens.

    Args:
        x: [B, T, D], any strides.
        weight: [W, D]; row j multiplies x_{t-j}. The torch form rounds it to x's type.
        segments: signed integer [B, T], document numbers, non-decreasing along T (not checked: a
            check would stall a GPU); None: every row is one document.
        state_inputs: [B, W - 1, D], the inputs before x_0; None: zeros.
        state_segments: signed integer [B, W - 1], their documents, -1 where there was no token;
            given exactly when `segments` and `state_inputs` both are.
        backend: "triton" (GPUs, up to 4 taps), "torch", or "auto": triton where it can run.

    Returns:
        [B, T, D] in x's type. Gradients flow to x, weight and state_inputs; through triton once.

    Raises:
        ValueError: for any argument outside this contract.
    """
    carried = {"state_inputs": state_inputs, "state_segments": state_segments}
    check_dense({"x": x, "weight": weight}, {"segments": segments, **carried})
    check_flag("silu", silu)
    _check(x, weight, segments, state_inputs, state_segments)
    width, refusal = len(weight), None
    if width > MOST_TAPS:
        refusal = f"has kernels for at most {MOST_TAPS} taps, got {width}; use backend='torch'"
    use_triton = takes_triton(backend, x, refusal)
    if width == 1:
        state_inputs = state_segments = None
    if state_inputs is not None:
        state_inputs = state_inputs.to(x.dtype)
    if use_triton and x.numel():
        refuse_transforms("short_conv", (x, weight, state_inputs), "use backend='torch'")
        from kernels.triton.layer_ops import short_conv_forward

        return short_conv_forward(x, weight, segments, state_inputs, state_segments, silu)
    return _torch_short_conv(x, weight, segments, state_inputs, state_segments, silu)


def _torch_short_conv(
    x: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    state_inputs: Tensor | None,
    state_segments: Tensor | None,
    silu: bool,
) -> Tensor:
    batch, length, _ = x.shape
    width, past = len(weight), len(weight) - 1
    if state_inputs is None:
        padded = F.pad(x, (0, 0, past, 0))
    else:
        padded = torch.cat((state_inputs, x), dim=1)
    numbers = None
    if segments is not None:
        before = state_segments
        if before is None:
            before = x.new_full((batch, past), -1, dtype=torch.int64)
        numbers = torch.cat((before, segments.to(torch.int64)), dim=1)

    weight = weight.to(x.dtype)
    y = x * weight[0]
    for j in range(1, width):
        tap = padded[:, past - j : past - j + length]
        if numbers is not None:
            same = numbers[:, past - j : past - j + length] == segments
            tap = tap * same[..., None].to(tap.dtype)
        y = torch.addcmul(y, tap, weight[j])
    return F.silu(y) if silu else y


def _check(
    x: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    state_inputs: Tensor | None,
    state_segments: Tensor | None,
) -> None:
    fits = x.dim() == 3 and weight.dim() == 2 and len(weight) >= 1
    if not fits or weight.shape[1] != x.shape[2]:
        raise ValueError(
            f"expected x [B, T, D] and weight [W, D] with W >= 1, got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if not (x.is_floating_point() and weight.is_floating_point()):
        raise ValueError(f"x is {x.dtype}, weight {weight.dtype}; both must be floating point")
    if (state_segments is not None) != (segments is not None and state_inputs is not None):
        given = {"segments": segments, "state_inputs": state_inputs}
        missing = [name for name, tensor in given.items() if tensor is None]
        raise ValueError(
            f"state_segments is given without {' and '.join(missing)}: pass None for it too"
            if state_segments is not None
            else "segments and state_inputs are given but state_segments is None: pass the "
            "document numbers [B, W - 1] of the carried inputs"
        )
    batch, length, channels = x.shape
    past = len(weight) - 1
    shapes = {
        "segments": (segments, (batch, length), "[B, T]"),
        "state_inputs": (state_inputs, (batch, past, channels), "[B, W - 1, D]"),
        "state_segments": (state_segments, (batch, past), "[B, W - 1]"),
    }
    for name, (tensor, shape, legend) in shapes.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; it must be {legend} = {shape}"
            )
        if name.endswith("segments"):
            check_numbers(name, tensor)
    tensors = {"weight": weight, **{name: entry[0] for name, entry in shapes.items()}}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} lies on {tensor.device}, x on {x.device}: move it there")
