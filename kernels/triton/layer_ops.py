"""The layers' kernels as PyTorch operators: with fakes and autograd, opaque to compilers."""

from typing import Any

import torch
from torch import Tensor

from kernels.derivatives import refuse_second_derivative
from kernels.triton import convolution, gated_norm


@torch.library.custom_op("braid::short_conv_forward", mutates_args=())
def short_conv_forward(
    x: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    inputs: Tensor | None,
    numbers: Tensor | None,
    silu: bool,
) -> Tensor:
    """As `kernels.triton.convolution.forward`."""
    return convolution.forward(x, weight, segments, inputs, numbers, silu)


@short_conv_forward.register_fake
def _(x, weight, segments, inputs, numbers, silu):
    return x.new_empty(x.shape)


@torch.library.custom_op("braid::short_conv_backward", mutates_args=())
def short_conv_backward(
    d_y: Tensor,
    x: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    inputs: Tensor | None,
    numbers: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `kernels.triton.convolution.backward`."""
    return convolution.backward(d_y, x, weight, segments, inputs, numbers, silu)


@short_conv_backward.register_fake
def _(d_y, x, weight, segments, inputs, numbers, silu):
    return (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape, dtype=torch.float32),
        x.new_empty(0 if inputs is None else inputs.shape),
    )


def _setup_short_conv(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _short_conv_gradients(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
    refuse_second_derivative("short_conv", ", or backend='torch'")
    _, weight, _, inputs, _ = ctx.saved_tensors
    d_x, d_weight, d_inputs = short_conv_backward(d_y, *ctx.saved_tensors, ctx.silu)
    d_inputs = None if inputs is None else d_inputs
    return d_x, d_weight.to(weight.dtype), None, d_inputs, None, None


short_conv_forward.register_autograd(_short_conv_gradients, setup_context=_setup_short_conv)


@torch.library.custom_op("braid::gated_norm_forward", mutates_args=())
def gated_norm_forward(o: Tensor, weight: Tensor, gate: Tensor, swish: bool, eps: float) -> Tensor:
    """As `kernels.triton.gated_norm.forward`."""
    return gated_norm.forward(o, weight, gate, swish, eps)


@gated_norm_forward.register_fake
def _(o, weight, gate, swish, eps):
    return gate.new_empty(gate.shape, dtype=torch.promote_types(o.dtype, gate.dtype))


@torch.library.custom_op("braid::gated_norm_backward", mutates_args=())
def gated_norm_backward(
    d_y: Tensor, o: Tensor, weight: Tensor, gate: Tensor, swish: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `kernels.triton.gated_norm.backward`."""
    return gated_norm.backward(d_y, o, weight, gate, swish, eps)


@gated_norm_backward.register_fake
def _(d_y, o, weight, gate, swish, eps):
    d_weight = weight.new_empty(weight.shape, dtype=torch.float32)
    return o.new_empty(o.shape), d_weight, gate.new_empty(gate.shape)


def _setup_gated_norm(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.swish, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _gated_norm_gradients(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
    refuse_second_derivative("gated_norm", ", or backend='torch'")
    _, weight, _ = ctx.saved_tensors
    d_o, d_weight, d_gate = gated_norm_backward(d_y, *ctx.saved_tensors, ctx.swish, ctx.eps)
    return d_o, d_weight.to(weight.dtype), d_gate, None, None


gated_norm_forward.register_autograd(_gated_norm_gradients, setup_context=_setup_gated_norm)
