"""python -m benchmarks.kernels: the Triton kernels against FLA and softmax attention, on a GPU.

    python -m benchmarks.kernels --quick            # under 4 minutes, the targets first
    python -m benchmarks.kernels --minutes 30 --ops gla retnet --lengths 2048 65536 --widths 128
    python -m benchmarks.kernels --read outputs/kernels/kernels.json    # show earlier numbers

Forward and forward + backward in bfloat16, 32,768 tokens of 2,048 channels a call (see
kernel_cases.py), packed with documents of mixed lengths and not. GPU events, medians of interleaved
repeats, all libraries in one process; FLA's columns need `pip install flash-linear-attention`.
Prints tables of times, ratios, memory and targets and leaves kernels.json (every repeat, hardware,
versions) and kernels.png (time a token against length) in the output folder.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import fla_ops
from benchmarks.command import parser_of
from benchmarks.kernel_calls import BRAID, FLA
from benchmarks.kernel_cases import LENGTHS, OPS, TARGET_WIDTH, WIDTHS, all_cases, quick_cases
from benchmarks.kernel_measure import Instruments, measure
from benchmarks.kernel_report import draw, show
from benchmarks.kernel_results import Results
from benchmarks.saved import Refused, make_folder, read_results
from benchmarks.timing import Budget, gpu_extra_bytes, gpu_milliseconds
from kernels.arguments import real_number, whole_number
from kernels.progress import progress
from model.training.files import write_atomic

QUICK_MINUTES, MINUTES = 3.6, 20.0
OUTPUT = Path("outputs/kernels")
_FIRST_STEP_SHARE = 0.25  # of the budget, at most, for one library's first step
_ROOT = Path(__file__).resolve().parent.parent

_minutes = real_number(1, allowed="of minutes >= 1", example="8")


def main(arguments: list[str] | None = None) -> int:
    """The command; 2 where it cannot run."""
    options = parse(arguments)
    output = options.output or (options.read.parent if options.read else OUTPUT)
    picture = output / "kernels.png"
    try:
        if options.read:
            results = read_results(options.read, Results)
            make_folder(output)
        else:
            if (reason := refusal()) is not None:
                raise Refused(reason)
            make_folder(output)
            results = _run(options)
            write_atomic(output / "kernels.json", json.dumps(results, indent=1) + "\n")
        draw(results, picture)
    except (Refused, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(results, Console(width=None if sys.stdout.isatty() else 140))
    print(f"picture: {picture}" if options.read else f"numbers and picture: {output}")
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("benchmarks.kernels", __doc__)
    parser.add_argument("--quick", action="store_true", help="a fixed selection, under 4 minutes")
    parser.add_argument("--ops", nargs="+", choices=OPS, help=f"default: {' '.join(OPS)}")
    parser.add_argument(
        "--lengths", nargs="+", type=whole_number(least=64), metavar="T", help="tokens a row"
    )
    parser.add_argument("--widths", nargs="+", type=int, choices=WIDTHS, help="of a head")
    parser.add_argument("--minutes", type=_minutes, help=f"time to spend, default {MINUTES:g}")
    place = f"default: {OUTPUT}, or where the file to --read lies"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=place)
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier kernels.json")
    options = parser.parse_args(arguments)
    chosen = {n: getattr(options, n) for n in ("ops", "lengths", "widths", "minutes")}
    given = " ".join(f"--{name}" for name, value in chosen.items() if value is not None)
    if options.quick and given:
        parser.error(f"--quick fixes what {given} sets: leave out one of them")
    if options.read and (options.quick or given):
        parser.error(f"--read measures nothing: leave out {given or '--quick'}")
    return options


def refusal() -> str | None:
    """Why nothing can be measured here; None if it can."""
    if not torch.cuda.is_available():
        return (
            "this benchmark times GPU kernels, and PyTorch finds no GPU here; "
            "python -m benchmarks.torch_backend times the CPU path, python -m kernels.cost counts "
            "bytes and FLOPs, and --read FILE shows numbers measured elsewhere"
        )
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "TRITON_INTERPRET is set, and the interpreter's times mean nothing: unset it"
    return None


def _run(options: argparse.Namespace) -> dict:
    budget = Budget(60 * (options.minutes or (QUICK_MINUTES if options.quick else MINUTES)))
    cases = (
        quick_cases()
        if options.quick
        else all_cases(options.ops or OPS, options.lengths or LENGTHS, options.widths or WIDTHS)
    )
    notes, fla = [], {}
    try:
        fla = fla_ops.chunked_ops()
    except fla_ops.FlaMissing as error:
        notes.append(f"FLA's columns are empty: {error}")
    libraries = [BRAID] if options.quick or not fla else [BRAID, FLA]
    first_steps = []
    for library in libraries:
        try:
            seconds = first_step(library, "gla", TARGET_WIDTH, budget.left() * _FIRST_STEP_SHARE)
            first_steps.append({"library": library, "op": "gla", "seconds": seconds})
        except RuntimeError as error:
            notes.append(f"{library}: first training step from a cold cache: {error}")
    instruments = Instruments(
        gpu_milliseconds,
        gpu_extra_bytes,
        search=partial(fla_ops.searches_compiled_side_by_side, os.cpu_count() or 1),
    )
    results = measure(cases, fla, instruments, budget, progress)
    results["notes"] = notes + results["notes"]
    return {"machine": machine(), "first_steps": first_steps, **results}


def first_step(library: str, op: str, width: int, seconds: float) -> float:
    """Seconds of the first training step, in a process of its own with an empty cache.

    Raises:
        RuntimeError: it failed or took longer than `seconds`.
    """
    command = [sys.executable, "-m", "benchmarks.first_step", library, op, str(width)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        try:
            done = subprocess.run(
                command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"not finished after {seconds:.0f} s") from error
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "failed").split("\n")[-1])
    return float(done.stdout.split()[-1])


def machine() -> dict:
    """Hardware and versions, for the table's title and the JSON."""
    versions = {"torch": torch.__version__, "triton": "-", "FLA": fla_ops.version()}
    versions["triton"] = importlib.metadata.version("triton")
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True
    )
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "cuda": torch.version.cuda or torch.version.hip,
        "versions": versions,
        "revision": described.stdout.strip() or "unknown",
    }


if __name__ == "__main__":
    sys.exit(main())
