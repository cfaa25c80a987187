"""RMSNorm of rows times an activated gate: one kernel each way, and their launches.

Backwards everything is computed again from the inputs, which have to be read anyway.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.blocks import layer_options
from kernels.triton.device import VARYING, load_channels, load_rows, store_rows
from kernels.triton.launch import run


def forward(
    o: Tensor,
    weight: Tensor,
    gate: Tensor,
    swish: bool,
    eps: float,
    launch: Callable[..., None] = run,
) -> Tensor:
    """Arguments as in `kernels.gated_norm`, swish as the activation or else the sigmoid."""
    width = o.shape[-1]
    rows = o.numel() // width
    y = gate.new_empty(gate.shape, dtype=torch.promote_types(o.dtype, gate.dtype))
    options = layer_options("normalize_and_gate", width)
    launch(
        normalize_and_gate, triton.cdiv(rows, options["ROWS"] * options["STEPS"]),
        o.contiguous(), weight.contiguous(), gate.contiguous(), y, eps, rows,
        SWISH=swish, **options,
    )  # fmt: skip
    return y


def backward(
    d_y: Tensor,
    o: Tensor,
    weight: Tensor,
    gate: Tensor,
    swish: bool,
    eps: float,
    launch: Callable[..., None] = run,
) -> tuple[Tensor, Tensor, Tensor]:
    """(d_o, d_weight in float32, d_gate)."""
    width = o.shape[-1]
    rows = o.numel() // width
    d_o = torch.empty_like(o, memory_format=torch.contiguous_format)
    d_gate = torch.empty_like(gate, memory_format=torch.contiguous_format)
    options = layer_options("normalize_and_gate_backward", width)
    programs = triton.cdiv(rows, options["ROWS"] * options["STEPS"])
    # Summed over programs here and not by atomics: the same bits in every run.
    d_weight = o.new_empty(programs, width, dtype=torch.float32)
    launch(
        normalize_and_gate_backward, programs,
        d_y.contiguous(), o.contiguous(), weight.contiguous(), gate.contiguous(),
        d_o, d_weight, d_gate, eps, rows, SWISH=swish, **options,
    )  # fmt: skip
    return d_o, d_weight.sum(0), d_gate


@triton.jit(do_not_specialize=VARYING)
def normalize_and_gate(
    o, weight, gate, y, eps, rows_in_all,
    SWISH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """y of ROWS * STEPS rows."""
    columns = tl.arange(0, CHANNELS)
    scale = load_channels(weight, columns, D)[None, :]
    begin = tl.program_id(0).to(tl.int64) * STEPS
    for step in range(tl.minimum(STEPS, tl.cdiv(rows_in_all, ROWS) - begin)):
        rows = (begin + step) * ROWS + tl.arange(0, ROWS)
        values = load_rows(o, D, rows, columns, rows_in_all, D).to(tl.float32)
        inverse = inverse_rms(values, rows, rows_in_all, eps, D)
        opening = load_rows(gate, D, rows, columns, rows_in_all, D).to(tl.float32)
        factor = tl.sigmoid(opening)
        if SWISH:
            factor *= opening
        store_rows(y, D, rows, columns, rows_in_all, values * inverse * scale * factor, D)


@triton.jit(do_not_specialize=VARYING)
def normalize_and_gate_backward(
    d_y, o, weight, gate, d_o, d_weight, d_gate, eps, rows_in_all,
    SWISH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """d_o and d_gate of ROWS * STEPS rows; what they add to d_weight [programs, D]."""
    columns = tl.arange(0, CHANNELS)
    scale = load_channels(weight, columns, D)[None, :]
    sums = tl.zeros((ROWS, CHANNELS), tl.float32)
    begin = tl.program_id(0).to(tl.int64) * STEPS
    for step in range(tl.minimum(STEPS, tl.cdiv(rows_in_all, ROWS) - begin)):
        rows = (begin + step) * ROWS + tl.arange(0, ROWS)
        values = load_rows(o, D, rows, columns, rows_in_all, D).to(tl.float32)
        inverse = inverse_rms(values, rows, rows_in_all, eps, D)
        normed = values * inverse
        opening = load_rows(gate, D, rows, columns, rows_in_all, D).to(tl.float32)
        factor = tl.sigmoid(opening)
        slope = factor * (1 - factor)
        if SWISH:
            slope = factor + opening * slope
            factor *= opening
        d_out = load_rows(d_y, D, rows, columns, rows_in_all, D).to(tl.float32)
        d_opening = d_out * normed * scale * slope
        store_rows(d_gate, D, rows, columns, rows_in_all, d_opening, D)
        d_out *= factor
        sums += d_out * normed
        d_normed = d_out * scale
        mean = (tl.sum(d_normed * normed, 1) / D)[:, None]
        d_values = (d_normed - normed * mean) * inverse
        store_rows(d_o, D, rows, columns, rows_in_all, d_values, D)
    at = tl.program_id(0).to(tl.int64) * D + columns
    tl.store(d_weight + at, tl.sum(sums, 0), mask=columns < D)


@triton.jit
def inverse_rms(values, rows, rows_in_all, eps, D: tl.constexpr):
    """1 / sqrt(mean(values^2) + eps) of each row, [rows, 1]; 1 beyond the last: eps may be 0."""
    mean = tl.sum(values * values, 1) / D + eps
    return tl.rsqrt(tl.where(rows < rows_in_all, mean, 1.0))[:, None]
