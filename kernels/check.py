"""python -m kernels.check: this machine's kernels against the float64 recurrence.

    python -m kernels.check                  on the GPU if there is one, else on the CPU
    python -m kernels.check --device cpu     in Triton's interpreter: minutes
    python -m kernels.check --device cuda

Every family (decay; additive write or delta rule), input type, range of gates and packing, with and
without normalisation, through the backend that a GPU runs it on: the largest relative error of
outputs, states and all gradients beside its budget. Calls of few tokens without gradients are those
of decoding. Then the layers with kernels of their own (check_layers.py). The command fails if one
is missed. Compilers have produced wrong code for single GPU generations (see
fla-org/flash-linear-attention#640 and #984), so training runs `check_model_kernels` at its start.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels.check_layers import Layer, LayerResult, check_layer, layer_results
from kernels.problems import (
    FAMILIES,
    STRENGTHS,
    Problem,
    can_normalize,
    make_problem,
    outputs,
    outputs_and_gradients,
    query_gradient_of_numerators,
    relative_error,
    worst_of,
)
from kernels.triton_backend import refusal

GATES_AT_START = ("mild", "half")
BUDGETS = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}


class KernelError(RuntimeError):
    """A kernel does not compute what it should on this machine."""


@dataclass(frozen=True)
class Case:
    """One call to check; widths are those of keys and values."""

    family: str
    dtype: torch.dtype
    gates: str
    normalize: bool
    segments: bool
    length: int
    key_width: int
    value_width: int
    strengths: str = "uniform"  # of the delta rule's writes
    decoding: bool = False  # outputs and states alone: few tokens have a kernel of their own


@dataclass(frozen=True)
class Result:
    """The worst error of a case, and whose it is."""

    case: Case
    backend: str
    tensor: str
    error: float

    @property
    def budget(self) -> float:
        return BUDGETS[self.case.dtype]

    @property
    def passed(self) -> bool:
        return self.error <= self.budget  # False for NaN


def cases(full_size: bool) -> Iterator[Case]:
    """What the command checks; `full_size` for GPUs, small shapes for the interpreter."""
    widths = [(64, 64), (128, 128), (96, 80), (256, 256)] if full_size else [(16, 16), (48, 20)]
    lengths = [1, 300, 1030] if full_size else [1, 70, 130]
    number = 0
    for family in FAMILIES:
        ranges = ("zero",) if family.endswith("none") else ("mild", "half", "all_20", "uniform")
        for gates in ranges:
            for dtype in BUDGETS:
                width = widths[number % len(widths)]
                length = lengths[(number // 2) % len(lengths)]
                normalize = can_normalize(family) and number % 3 == 0
                strengths = STRENGTHS[number % len(STRENGTHS)]
                yield Case(
                    family, dtype, gates, normalize, number % 2 == 0, length, *width, strengths
                )
                number += 1
    for number, (family, dtype) in enumerate(itertools.product(FAMILIES, BUDGETS)):
        gates = "zero" if family.endswith("none") else "half"
        normalize = can_normalize(family) and number % 2 == 0
        length, width = (1, 13)[number // 2 % 2], widths[number % len(widths)]
        yield Case(family, dtype, gates, normalize, True, length, *width, decoding=True)


def check(case: Case, device: str) -> Result:
    """One case through `triton`, or `torch` where that refuses, and the float64 reference."""
    problem = make_problem(
        case.family,
        batch=1,
        length=case.length,
        key_width=case.key_width,
        value_width=case.value_width,
        gates=case.gates,
        strengths=case.strengths,
        normalize=case.normalize,
        segments=case.segments,
        seed=case.length,
    )
    problem = problem.to(device).cast(case.dtype)
    exact_problem = problem.cast(torch.float64)
    backend = "triton" if refusal(problem.q, problem.beta) is None else "torch"
    if case.decoding:
        actual = outputs(problem, backend=backend)
        exact = outputs(exact_problem, backend="reference")
    else:
        actual = outputs_and_gradients(problem, backend=backend, upstream=case.dtype)
        exact = outputs_and_gradients(exact_problem, backend="reference", upstream=case.dtype)
    floors = _floors(exact_problem)
    errors = {
        name: relative_error(actual[name], expected, floors.get(name, 1e-9))
        for name, expected in exact.items()
    }
    return Result(case, backend, *worst_of(errors))


def _floors(problem: Problem) -> dict[str, float]:
    if problem.z is None:
        return {}
    return {"d_q": query_gradient_of_numerators(problem).norm().item()}


def check_model_kernels(
    widths: set[tuple[str, int, int, bool]],
    dtype: torch.dtype,
    device: str,
    layers: set[tuple[str, int, int, bool]] = frozenset(),
) -> None:
    """The short form for the start of training: the very kernels that the model will launch.

    Args:
        widths: (family, key width, value width, normalised) of each kind of mixer.
        layers: fields of `Layer`, of each short convolution and gated norm.

    Raises:
        KernelError: one misses its budget; names it, and what to do.
    """
    for family, key_width, value_width, normalize in sorted(widths):
        for gates in ("zero",) if family.endswith("none") else GATES_AT_START:
            case = Case(family, dtype, gates, normalize, True, 200, key_width, value_width)
            result = check(case, device)
            place = (
                f"family {family}, backend {result.backend}, widths {key_width} and {value_width}"
            )
            _demand(result, place, dtype)
    for layer in (Layer(*shape) for shape in sorted(layers)):
        result = check_layer(layer, dtype, 200, device, with_state=False)
        _demand(result, f"{layer.name} of {layer.shape}", dtype)


def _demand(result: Result | LayerResult, place: str, dtype: torch.dtype) -> None:
    if not result.passed:
        raise KernelError(
            f"the kernels compute wrong values on this machine: {place}, {_name(dtype)}: "
            f"relative error {result.error:.1e} of {result.tensor}, budget {result.budget:.0e}. "
            "Run python -m kernels.check for the whole table, try another version of triton, and "
            "report both"
        )


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a budget is missed."""
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        "python -m kernels.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = "cuda" if has_gpu else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default)
    device = parser.parse_args(arguments).device
    if device == "cuda" and not has_gpu:
        parser.error("--device cuda: PyTorch finds no GPU here; type --device cpu")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, below
        torch.set_num_threads(1)  # the products are tiny
    from rich.console import Console
    from rich.table import Table

    from kernels.progress import progress

    todo = list(cases(full_size=device == "cuda"))
    results = [check(case, device) for case in progress(todo, "check")]
    table = Table(
        "family", "gates", "backend", "dtype", "T", "K, V", "normalised", "packed", "call",
        "worst", "error", "budget", "", title=_where(device),
    )  # fmt: skip
    for r in results:
        c = r.case
        table.add_row(
            c.family, c.gates, r.backend, _name(c.dtype), str(c.length),
            f"{c.key_width}, {c.value_width}", "yes" if c.normalize else "",
            "yes" if c.segments else "", "decode" if c.decoding else "train", r.tensor,
            f"{r.error:.1e}", f"{r.budget:.0e}", "" if r.passed else "MISSED",
        )  # fmt: skip
    layers = list(layer_results(device == "cuda", device))
    layer_table = Table("layer", "dtype", "T", "shape", "worst", "error", "budget", "")
    for r in layers:
        layer_table.add_row(
            r.layer.name, _name(r.dtype), str(r.length), r.layer.shape, r.tensor,
            f"{r.error:.1e}", f"{r.budget:.0e}", "" if r.passed else "MISSED",
        )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print(layer_table)
    results += layers
    missed = sum(not r.passed for r in results)
    print(f"{len(results) - missed} of {len(results)} cases within their budgets")
    return 1 if missed else 0


def _where(device: str) -> str:
    import triton

    place = torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter on the CPU"
    return f"{place}; torch {torch.__version__}, triton {triton.__version__}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    sys.exit(main())
