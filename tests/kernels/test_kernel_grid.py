"""The chunked backends over a pairwise grid of everything that a call can vary."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_oracle import (
    FAMILIES,
    GATES,
    STRENGTHS,
    Problem,
    can_normalize,
    make_problem,
    outputs_and_gradients,
    query_gradient_of_numerators,
    relative_error,
)
from pairwise import pairwise

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
LENGTHS = [1, 15, 16, 17, 63, 64, 65, 130, 257]
FACTORS = {
    "length": LENGTHS,
    "widths": [(16, 16), (48, 80), (64, 48), (80, 64), (16, 80), (130, 16)],
    "dtype": list(TOLERANCES),
    "gates": GATES,
    "documents": ["one", "some", "single_tokens"],
    "state": [True, False],
    "layout": ["contiguous", "transposed", "one_head_expanded"],
}
ADDITIVE = [family for family in FAMILIES if can_normalize(family)]
DELTA = [family for family in FAMILIES if family not in ADDITIVE]
ADDITIVE_GRID = list(pairwise({"family": ADDITIVE, **FACTORS, "normalize": [False, True]}))
DELTA_GRID = list(
    pairwise(
        {"family": DELTA, **FACTORS, "strengths": STRENGTHS, "distinct_keys": [None, 1, 2]},
    )
)
# The interpreter is slow on the delta rule: lengths in turn, not in every pair with the rest.
INTERPRETED_DELTA_GRID = [
    case | {"length": length}
    for length, case in zip(
        itertools.cycle(LENGTHS),
        pairwise(
            {
                "family": DELTA,
                **{name: values for name, values in FACTORS.items() if name != "length"},
                "widths": [(16, 80), (48, 16), (64, 16), (80, 48)],
                "gates": ["zero", "mild", "uniform", "half"],
                "strengths": STRENGTHS,
                "distinct_keys": [None, 1, 2],
            }
        ),
        strict=False,
    )
]


def interpreted(case: dict[str, Any]) -> Any:
    """A call of the Triton kernels: the interpreter takes seconds for the larger ones."""
    most = 17 if "strengths" in case else 65
    large = case["length"] > most or max(case["widths"]) > 64
    return pytest.param("triton", case, marks=[pytest.mark.long] if large else [])


CALLS = [
    *(("torch", case) for case in (*ADDITIVE_GRID, *DELTA_GRID)),
    *(interpreted(case) for case in (*ADDITIVE_GRID, *INTERPRETED_DELTA_GRID)),
]


def transposed(problem: Problem) -> Problem:
    views = {n: getattr(problem, n).transpose(1, 2).contiguous().transpose(1, 2) for n in "qkv"}
    return replace(problem, **views)


def one_head_expanded(problem: Problem) -> Problem:
    views = {n: getattr(problem, n)[:, :, :1].expand(getattr(problem, n).shape) for n in "qk"}
    return replace(problem, **views)


LAYOUTS = {
    "contiguous": lambda problem: problem,
    "transposed": transposed,
    "one_head_expanded": one_head_expanded,
}


def describe(value: str | dict[str, Any]) -> str:
    parts = [value] if isinstance(value, str) else value.values()
    return "-".join(str(part).replace("torch.", "") for part in parts)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fills what is allocated and not yet written with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("backend", "case"), CALLS, ids=describe)
def test_chunked_backends_equal_the_recurrence(
    backend: str, case: dict[str, Any], poisoned_memory: None
) -> None:
    dtype = case["dtype"]
    problem = problem_of(case).cast(dtype)
    exact_problem = problem.cast(torch.float64)
    options = {"upstream": dtype, "scale": 0.3, "with_state": case["state"]}
    options["arrange"] = LAYOUTS[case["layout"]]
    actual = outputs_and_gradients(problem, backend=backend, **options)
    exact = outputs_and_gradients(exact_problem, backend="reference", **options)
    floors = {}
    if problem.z is not None:
        numerators = query_gradient_of_numerators(exact_problem, case["state"])
        floors["d_q"] = numerators.norm().item()
    if problem.beta is not None and case["length"] == 1:
        # All of it is one dot product, which may cancel to nothing.
        floors["d_beta"] = exact["d_v"].norm().item() / 100
    for name, expected in exact.items():
        error = relative_error(actual[name], expected, floors.get(name, 1e-9))
        assert error <= TOLERANCES[dtype], (name, error)


def problem_of(case: dict[str, Any]) -> Problem:
    heads = 2 if case["layout"] == "one_head_expanded" else 1
    problem = make_problem(
        case["family"],
        batch=1,
        heads=heads,
        length=case["length"],
        key_width=case["widths"][0],
        value_width=case["widths"][1],
        gates=case["gates"],
        normalize=case.get("normalize", False),
        segments=case["documents"] != "one",
        **{name: case[name] for name in ("strengths", "distinct_keys") if name in case},
    )
    if case["documents"] == "single_tokens":
        numbers = torch.arange(case["length"]) // 3 + (torch.arange(case["length"]) % 5 == 0).int()
        problem = replace(problem, segments=numbers.cummax(0).values[None] + 3)
    return problem
