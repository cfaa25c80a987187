"""The layers with kernels of their own against float64; `python -m kernels.check` runs it too."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.convolution import short_conv
from kernels.norms import gated_norm
from kernels.problems import relative_error, worst_of

BUDGETS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
_EPS = 1e-6


@dataclass(frozen=True, order=True)
class Layer:
    """What selects a compiled kernel.

    short_conv: channels, taps, whether a silu follows. gated_norm: width of a head, heads, whether
    the gate's activation is swish.
    """

    name: str
    width: int
    count: int
    silu: bool

    @property
    def shape(self) -> str:
        if self.name == "short_conv":
            return f"{self.width} channels, {self.count} taps{', silu' if self.silu else ''}"
        gate = "swish" if self.silu else "sigmoid"
        return f"{self.count} heads of {self.width} channels, {gate}"


@dataclass(frozen=True)
class LayerResult:
    """The worst error of a layer's call, and whose it is."""

    layer: Layer
    dtype: torch.dtype
    length: int
    tensor: str
    error: float

    @property
    def budget(self) -> float:
        return BUDGETS[self.dtype]

    @property
    def passed(self) -> bool:
        return self.error <= self.budget  # False for NaN


def layer_results(full_size: bool, device: str) -> Iterator[LayerResult]:
    """What the command checks; `full_size` for GPUs, small shapes for the interpreter."""
    width, length = (1024, 1030) if full_size else (20, 40)
    head = 128 if full_size else 20
    for dtype in BUDGETS:
        yield check_layer(Layer("short_conv", width, 4, True), dtype, length, device)
        yield check_layer(Layer("gated_norm", head, 2, True), dtype, length, device)


def check_layer(
    layer: Layer, dtype: torch.dtype, length: int, device: str, with_state: bool = True
) -> LayerResult:
    """One call of the kernels on packed rows beside its float64 formula.

    with_state: convolutions carry inputs in, which training does not.
    """
    options = {"with_state": with_state} if layer.name == "short_conv" else {}
    errors = layer_errors(layer, dtype, length, device, **options)
    return LayerResult(layer, dtype, length, *worst_of(errors))


def layer_errors(
    layer: Layer, dtype: torch.dtype, length: int, device: str = "cpu", **options: object
) -> dict[str, float]:
    """Relative errors of the output and all gradients; options as in `_short_conv`."""
    torch.manual_seed(length)
    make = {"short_conv": _short_conv, "gated_norm": _gated_norm}[layer.name]
    leaves, kernels, formula = make(layer, length, device, **options)
    weight = leaves.pop("weight").to(device)
    leaves = {"weight": weight, **{name: x.to(device, dtype) for name, x in leaves.items()}}
    actual = _outputs_and_gradients(kernels, leaves, dtype)
    # The formula sees the rounded inputs and upstream gradients.
    exact = _outputs_and_gradients(formula, {n: x.double() for n, x in leaves.items()}, dtype)
    return {name: relative_error(actual[name], exact[name]) for name in exact}


def _short_conv(
    layer: Layer,
    length: int,
    device: str,
    segments: Tensor | None = None,
    with_state: bool = True,
) -> tuple[dict[str, Tensor], Callable[..., Tensor], Callable[..., Tensor]]:
    """(leaves, call, float64 formula). segments: [2, length]; None packs short documents."""
    past = layer.count - 1
    if segments is None:
        segments = 3 + (torch.rand(2, length) < 0.3).long().cumsum(1)
    segments = segments.to(device)
    numbers = torch.full((2, past), 3, device=device)
    numbers[:, :1] = 2  # of another document
    leaves = {
        "x": torch.randn(2, length, layer.width),
        "weight": torch.randn(layer.count, layer.width),
    }
    if with_state:
        leaves["state"] = torch.randn(2, past, layer.width)

    def call(x: Tensor, weight: Tensor, state: Tensor | None = None) -> Tensor:
        before = None if state is None else numbers
        return short_conv(x, weight, segments, state, before, layer.silu, "triton")

    def formula(x: Tensor, weight: Tensor, state: Tensor | None = None) -> Tensor:
        state = x.new_zeros(2, past, layer.width) if state is None else state
        padded, documents = torch.cat((state, x), 1), torch.cat((numbers, segments), 1)
        same = documents[:, past:, None] == documents[:, None]
        index = torch.arange(past + length, device=device)
        distance = index[past:, None] - index
        taps = [((distance == j) & same).to(x.dtype) @ padded for j in range(layer.count)]
        y = sum(tap * row for tap, row in zip(taps, weight, strict=True))
        return F.silu(y) if layer.silu else y

    return leaves, call, formula


def _gated_norm(
    layer: Layer, length: int, device: str
) -> tuple[dict[str, Tensor], Callable[..., Tensor], Callable[..., Tensor]]:
    shape = (2, length, layer.count, layer.width)
    leaves = {
        "o": torch.randn(shape),
        "weight": torch.randn(layer.width),
        "gate": torch.randn(shape).flatten(2),
    }
    activation = "swish" if layer.silu else "sigmoid"

    def call(o: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return gated_norm(o, weight, gate, activation, _EPS, "triton")

    def formula(o: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        y = o / (o.square().mean(-1, keepdim=True) + _EPS).sqrt() * weight
        return y.flatten(2) * gate.sigmoid() * (gate if layer.silu else 1)

    return leaves, call, formula


def _outputs_and_gradients(
    call: Callable[..., Tensor], leaves: dict[str, Tensor], upstream: torch.dtype
) -> dict[str, Tensor]:
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    out = call(**leaves)
    generator = torch.Generator().manual_seed(7)
    d_out = torch.randn(out.shape, generator=generator).to(out.device, upstream)
    gradients = torch.autograd.grad(out, list(leaves.values()), d_out.to(out.dtype))
    named = {f"d_{name}": grad for name, grad in zip(leaves, gradients, strict=True)}
    return {"out": out.detach(), **named}
