"""python -m kernels.compile: compiles every kernel ahead of time, for GPUs that are not here.

    python -m kernels.compile                          all kernels, for all targets
    python -m kernels.compile --target sm_90 --family channel --width 64 --dtype bfloat16

For each kernel and configuration: registers of a thread, spilled bytes, shared memory, instructions
for tensor cores, and how many warps of a multiprocessor can run at once. The launches are those of
a training step and of decoding, only that they stop after compilation; the shapes are those of meta
tensors.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels.arguments import whole_number
from kernels.triton.blocks import MOST_DELTA_KEYS
from kernels.triton.targets import TARGETS, Resources, cannot_compile, compile_for, resources

FAMILIES = ("none", "head", "token", "channel")
LAYERS = "layers"  # in the place of a family: the short convolution and the gated norm
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_MAX_WIDTH = 4096  # far above any head in use; meta tensors of any width would pass


@dataclass(frozen=True)
class Case:
    """One way to call the kernels; K = V = width, or channels of both layers."""

    family: str
    width: int
    dtype: torch.dtype
    normalize: bool = False
    segments: bool = True
    delta: bool = False
    decoding: bool = False  # the next tokens of a row, not a training step


@dataclass(frozen=True)
class Row:
    """One compiled kernel."""

    target: str
    case: Case
    kernel: str
    blocks: str
    resources: Resources


def compiled(target: str, case: Case, length: int = 1000) -> Iterator[Row]:
    """The kernels of one training step, forward and backward, or of decoding, as launched."""
    for kernel, options, program in launches(target, case, length):
        blocks = " x ".join(
            str(options[name]) for name in ("BK", "BV", "ROWS", "CHANNELS") if name in options
        )
        backward = {True: " (backward)", False: " (forward)"}.get(options.get("BACKWARD"), "")
        yield Row(target, case, kernel + backward, blocks, resources(program, TARGETS[target]))


def launches(target: str, case: Case, length: int = 1000, batch: int = 2, heads: int = 4) -> list:
    """[(kernel, its options, compiled program)] of one call of `length` tokens."""
    if case.family == LAYERS:
        return _layer_launches(target, case, length, batch, heads)
    from kernels.triton import delta_launch
    from kernels.triton.decode import launch_decode
    from kernels.triton.launch import Problem, backward, forward

    def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    recorded: list = []
    q, k, v = (meta(batch, length, heads, case.width, dtype=case.dtype) for _ in range(3))
    decay = {
        "none": None,
        "head": meta(heads),
        "token": meta(batch, length, heads),
        "channel": meta(*q.shape),
    }[case.family]
    segments = meta(batch, length, dtype=torch.int64) if case.segments else None
    with compile_for(TARGETS[target], recorded) as launch:
        options = (1.0, case.normalize, False, 4, launch, case.delta)
        p = Problem.of(q, k, v, decay, segments, None, *options)
        beta = meta(batch, length, heads) if case.delta else None
        if case.decoding:
            launch_decode(p, beta, None, None)
            return recorded
        if case.delta:
            o, S, *kept = delta_launch.forward(p, beta, None)
            delta_launch.backward(p, beta, torch.empty_like(o), S, *kept, with_decay=True)
            return recorded
        o, S, z, *kept = forward(p, None, None)
        d_z = z if case.normalize else None
        backward(p, torch.empty_like(o), S, d_z, o, *kept, with_decay=True)
    return recorded


def _layer_launches(target: str, case: Case, length: int, batch: int, heads: int) -> list:
    from kernels.triton import convolution, gated_norm

    recorded: list = []
    with torch.device("meta"), compile_for(TARGETS[target], recorded) as launch:
        x = torch.empty(batch, length, case.width, dtype=case.dtype)
        taps = torch.empty(4, case.width)
        segments = torch.empty(batch, length, dtype=torch.int64) if case.segments else None
        options = (x, taps, segments, None, None, True, launch)
        convolution.backward(convolution.forward(*options), *options)
        o = torch.empty(batch, length, heads, case.width, dtype=case.dtype)
        options = (o, torch.empty(case.width), o.flatten(2), True, 1e-6, launch)
        gated_norm.backward(gated_norm.forward(*options), *options)
    return recorded


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a kernel needs more shared memory than its target has."""
    options = _parse(arguments)
    cases = [
        Case(
            family, width, DTYPES[dtype], options.normalize, delta=options.delta, decoding=decoding
        )
        for family, width, dtype in itertools.product(options.family, options.width, options.dtype)
        for decoding in ((False,) if family == LAYERS else (False, True))
    ]
    from rich.console import Console
    from rich.table import Table

    from kernels.progress import progress

    table = Table(
        "target", "decay", "K = V", "dtype", "kernel", "blocks", "registers", "spilled bytes",
        "shared KiB", "tensor-core instructions", "warps / SM",
    )  # fmt: skip
    failures = []
    work = list(itertools.product(options.target, cases))
    for target, case in progress(work, "compile"):
        for row in compiled(target, case):
            r = row.resources
            table.add_row(
                target, case.family, str(case.width), str(case.dtype).removeprefix("torch."),
                row.kernel, row.blocks, str(r.registers), str(r.spilled_bytes),
                f"{r.shared_bytes / 1024:.1f}", str(r.tensor_core_instructions), str(r.warps),
            )  # fmt: skip
            if not r.fits:
                failures.append(f"{target}: {row.kernel} needs {r.shared_bytes} bytes of shared")
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    for failure in failures:
        print(f"Error: {failure} memory, more than a multiprocessor has", file=sys.stderr)
    return 1 if failures else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m kernels.compile")
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--family", nargs="+", choices=[*FAMILIES, LAYERS])
    width = whole_number(most=_MAX_WIDTH)
    parser.add_argument("--width", nargs="+", type=width, default=[64, 128], help="K = V")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bfloat16"])
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--normalize", action="store_true")
    kind.add_argument("--delta", action="store_true", help="the delta rule, not the additive write")
    options = parser.parse_args(arguments)
    of_recurrences = options.normalize or options.delta
    if options.family is None:
        options.family = ["token", "channel", *([] if of_recurrences else [LAYERS])]
    if of_recurrences and LAYERS in options.family:
        parser.error(f"--family {LAYERS} knows no --normalize and no --delta; run it without them")
    if options.delta and (widest := max(options.width)) > MOST_DELTA_KEYS:
        parser.error(f"--delta has kernels up to --width {MOST_DELTA_KEYS}, got {widest}")
    if (reason := cannot_compile()) is not None:
        parser.error(reason)
    return options


if __name__ == "__main__":
    sys.exit(main())
