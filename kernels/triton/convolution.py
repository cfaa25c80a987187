"""The short causal convolution: one kernel each way, and their launches.

A row's inputs are at positions 0 .. length - 1, the carried ones before them at -PAST .. -1. A
window holds the inputs of all shifts that a tile needs, each loaded once.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.blocks import layer_options
from kernels.triton.device import VARYING, load_channels, place
from kernels.triton.launch import run


def forward(
    x: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    inputs: Tensor | None,
    numbers: Tensor | None,
    silu: bool,
    launch: Callable[..., None] = run,
) -> Tensor:
    """y [B, T, D]; arguments as in `kernels.short_conv`, with 2 <= W where inputs are given."""
    batch, length, width = x.shape
    x = x.contiguous()
    y = torch.empty_like(x)
    options = _options("convolve", x, weight, segments, inputs, silu)
    parts = triton.cdiv(length, options["ROWS"] * options["STEPS"])
    launch(
        convolve, batch * parts * triton.cdiv(width, options["CHANNELS"]),
        *_dense(x, weight, segments, inputs, numbers), y, length, **options,
    )  # fmt: skip
    return y


def backward(
    d_y: Tensor,
    x: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    inputs: Tensor | None,
    numbers: Tensor | None,
    silu: bool,
    launch: Callable[..., None] = run,
) -> tuple[Tensor, Tensor, Tensor]:
    """(d_x, d_weight in float32, d_inputs); the last is empty where there are none."""
    batch, length, width = x.shape
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    d_inputs = x.new_empty(0 if inputs is None else inputs.shape)
    options = _options("convolve_backward", x, weight, segments, inputs, silu)
    positions = length if inputs is None else length + inputs.shape[1]
    parts = triton.cdiv(positions, options["ROWS"] * options["STEPS"])
    # Summed over programs here and not by atomics: the same bits in every run.
    d_weight = x.new_empty(batch * parts, *weight.shape, dtype=torch.float32)
    launch(
        convolve_backward, batch * parts * triton.cdiv(width, options["CHANNELS"]),
        d_y.contiguous(), *_dense(x.contiguous(), weight, segments, inputs, numbers),
        d_x, d_weight, d_inputs, length, **options,
    )  # fmt: skip
    return d_x, d_weight.sum(0), d_inputs


def _dense(x: Tensor, *optional: Tensor | None) -> list[Tensor]:
    """All contiguous, x in the place of what is not there."""
    return [x, *(x if tensor is None else tensor.contiguous() for tensor in optional)]


def _options(
    kernel: str,
    x: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    inputs: Tensor | None,
    silu: bool,
) -> dict:
    return {
        "SILU": silu,
        "SEGMENTS": segments is not None,
        "STATE": inputs is not None,
        "TAPS": len(weight),
        **layer_options(kernel, x.shape[2]),
    }


@triton.jit(do_not_specialize=VARYING)
def convolve(
    x, weight, segments, inputs, numbers, y, length,
    SILU: tl.constexpr, SEGMENTS: tl.constexpr, STATE: tl.constexpr, TAPS: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """y of ROWS * STEPS positions and CHANNELS channels."""
    PAST: tl.constexpr = TAPS - 1
    parts = tl.cdiv(length, ROWS * STEPS)
    block, part, batch, _, _ = place((D + CHANNELS - 1) // CHANNELS, parts, 1)
    columns = block * CHANNELS + tl.arange(0, CHANNELS)
    x += batch * length * D
    y += batch * length * D
    segments += batch * length
    inputs += batch * PAST * D
    numbers += batch * PAST
    weights = load_weights(weight, columns, TAPS, D)
    for step in range(tl.minimum(STEPS, tl.cdiv(length, ROWS) - part * STEPS)):
        rows = (part * STEPS + step) * ROWS + tl.arange(0, ROWS)
        taps, documents = load_window(
            x, segments, inputs, numbers, rows - PAST, columns, length,
            TAPS, SEGMENTS, STATE, PAST, D,
        )  # fmt: skip
        z = convolved(taps, documents, weights, PAST, SEGMENTS, TAPS)
        store_at(y, rows, columns, length, z * tl.sigmoid(z) if SILU else z, D)


@triton.jit(do_not_specialize=VARYING)
def convolve_backward(
    d_y, x, weight, segments, inputs, numbers, d_x, d_weight, d_inputs, length,
    SILU: tl.constexpr, SEGMENTS: tl.constexpr, STATE: tl.constexpr, TAPS: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """d_x or d_inputs of ROWS * STEPS positions; what they add to d_weight [programs, TAPS, D]."""
    PAST: tl.constexpr = TAPS - 1
    FIRST: tl.constexpr = -PAST if STATE else 0
    parts = tl.cdiv(length - FIRST, ROWS * STEPS)
    block, part, batch, _, _ = place((D + CHANNELS - 1) // CHANNELS, parts, 1)
    columns = block * CHANNELS + tl.arange(0, CHANNELS)
    x += batch * length * D
    d_y += batch * length * D
    d_x += batch * length * D
    segments += batch * length
    inputs += batch * PAST * D
    d_inputs += batch * PAST * D
    numbers += batch * PAST
    weights = load_weights(weight, columns, TAPS, D)
    sums = (tl.zeros((ROWS, CHANNELS), tl.float32),) * TAPS
    for step in range(tl.minimum(STEPS, tl.cdiv(length - FIRST, ROWS) - part * STEPS)):
        rows = FIRST + (part * STEPS + step) * ROWS + tl.arange(0, ROWS)
        # These positions are entry PAST; those that read them, and what else these read, around it.
        taps, documents = load_window(
            x, segments, inputs, numbers, rows - PAST, columns, length,
            TAPS + PAST, SEGMENTS, STATE, PAST, D,
        )  # fmt: skip
        result = tl.zeros((ROWS, CHANNELS), tl.float32)
        added = ()
        for j in tl.static_range(TAPS):
            d_z = load_at(d_y, rows + j, columns, length, D)
            if SILU:
                z = convolved(taps, documents, weights, PAST + j, SEGMENTS, TAPS)
                gate = tl.sigmoid(z)
                d_z *= gate * (1 + z * (1 - gate))
            if SEGMENTS:
                d_z = tl.where((documents[PAST + j] == documents[PAST])[:, None], d_z, 0.0)
            result += d_z * weights[j]
            added += (sums[j] + d_z * taps[PAST],)
        sums = added
        store_at(d_x, rows, columns, length, result, D)
        if STATE:
            store_at(d_inputs, rows + PAST, columns, PAST, result, D)
    d_weight += (batch * parts + part) * TAPS * D
    for j in tl.static_range(TAPS):
        tl.store(d_weight + j * D + columns, tl.sum(sums[j], 0), mask=columns < D)


@triton.jit
def convolved(
    taps, documents, weights, at: tl.constexpr, SEGMENTS: tl.constexpr, TAPS: tl.constexpr
):
    """The convolution, before its silu, of the positions that are entry `at` of the window."""
    total = taps[at] * weights[0]
    for j in tl.static_range(1, TAPS):
        tap = taps[at - j]
        if SEGMENTS:
            tap = tl.where((documents[at - j] == documents[at])[:, None], tap, 0.0)
        total += tap * weights[j]
    return total


@triton.jit
def load_weights(weight, columns, TAPS: tl.constexpr, D: tl.constexpr):
    """TAPS times float32 [1, columns]."""
    weights = ()
    for j in tl.static_range(TAPS):
        weights += (load_channels(weight + j * D, columns, D)[None, :],)
    return weights


@triton.jit
def load_window(
    x, segments, inputs, numbers, rows, columns, length,
    COUNT: tl.constexpr, SEGMENTS: tl.constexpr, STATE: tl.constexpr, PAST: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Inputs at the positions rows, rows + 1 .. rows + COUNT - 1, and their documents.

    Positions that are not there hold 0, and belong to document -1.
    """
    taps, documents = (), ()
    for j in tl.static_range(COUNT):
        at = rows + j
        tap = load_at(x, at, columns, length, D)
        if STATE:
            tap += load_at(inputs, at + PAST, columns, PAST, D)
        taps += (tap,)
        document = at
        if SEGMENTS:
            inside = (at >= 0) & (at < length)
            document = tl.load(segments + at, mask=inside, other=-1).to(tl.int64)
            if STATE:
                before = (at < 0) & (at >= -PAST)
                carried = tl.load(numbers + at + PAST, mask=before, other=-1).to(tl.int64)
                document = tl.where(before, carried, document)
        documents += (document,)
    return taps, documents


@triton.jit
def load_at(base, rows, columns, count, D: tl.constexpr):
    """Float32 [rows, columns] of a contiguous matrix [count, D]; 0 outside of it."""
    inside = ((rows >= 0) & (rows < count))[:, None] & (columns < D)[None, :]
    offsets = rows[:, None].to(tl.int64) * D + columns[None, :]
    return tl.load(base + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_at(base, rows, columns, count, values, D: tl.constexpr):
    """The counterpart of `load_at`; casts to the type stored."""
    inside = ((rows >= 0) & (rows < count))[:, None] & (columns < D)[None, :]
    offsets = rows[:, None].to(tl.int64) * D + columns[None, :]
    tl.store(base + offsets, values.to(base.dtype.element_ty), mask=inside)
