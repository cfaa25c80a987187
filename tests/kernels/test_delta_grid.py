"""The Triton kernels of the delta rule, interpreted, over a grid of everything that can vary."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from delta_oracle import (
    BETAS,
    DeltaProblem,
    delta_attention,
    delta_recurrence,
    delta_results,
    make_delta_problem,
)
from kernel_oracle import FAMILIES, relative_error
from pairwise import pairwise

from kernels.triton.interpreter import compute_in_bfloat16

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
LENGTHS = [1, 15, 16, 17, 63, 64, 65, 130, 257]
GRID = list(
    pairwise(
        {
            "family": FAMILIES,
            "widths": [(16, 80), (48, 16), (64, 48), (80, 64)],
            "dtype": list(TOLERANCES),
            "gates": ["zero", "mild", "uniform", "half", "all_200"],
            "betas": BETAS,
            "documents": ["one", "some", "single_tokens"],
            "state": [True, False],
            "layout": ["contiguous", "transposed", "one_head_expanded"],
        }
    )
)
GRID = [{"length": LENGTHS[i % len(LENGTHS)], **case} for i, case in enumerate(GRID)]


def transposed(problem: DeltaProblem) -> DeltaProblem:
    names = ("q", "k", "v", "beta")
    views = {n: getattr(problem, n).transpose(1, 2).contiguous().transpose(1, 2) for n in names}
    return replace(problem, **views)


def one_head_expanded(problem: DeltaProblem) -> DeltaProblem:
    names = ("q", "k", "beta")
    views = {n: getattr(problem, n)[:, :, :1].expand(getattr(problem, n).shape) for n in names}
    return replace(problem, **views)


LAYOUTS = {
    "contiguous": lambda problem: problem,
    "transposed": transposed,
    "one_head_expanded": one_head_expanded,
}


def describe(case: dict[str, Any]) -> str:
    return "-".join(str(value).replace("torch.", "") for value in case.values())


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fills what is allocated and not yet written with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("case", GRID, ids=describe)
def test_kernels_equal_the_recurrence(case: dict[str, Any], poisoned_memory: None) -> None:
    compute_in_bfloat16()
    problem = make_delta_problem(
        case["family"],
        heads=2 if case["layout"] == "one_head_expanded" else 1,
        length=case["length"],
        key_width=case["widths"][0],
        value_width=case["widths"][1],
        gates=case["gates"],
        betas=case["betas"],
        segments=case["documents"] != "one",
    ).cast(case["dtype"])
    if case["documents"] == "single_tokens":
        index = torch.arange(case["length"])
        numbers = index // 3 + (index % 5 == 0).int()
        problem = replace(problem, segments=numbers.cummax(0).values[None] + 3)
    options = {"upstream": case["dtype"], "with_state": case["state"]}
    options["arrange"] = LAYOUTS[case["layout"]]
    tolerance = TOLERANCES[case["dtype"]]
    # Under strong decays one or two tokens make up all of the decay's gradient: its rounding errors
    # are not averaged.
    strong = case["gates"] == "uniform" and case["dtype"] == torch.bfloat16
    tolerances = {"d_decay": 2e-2} if strong else {}
    assert_close_to_recurrence(problem, tolerance, tolerances, **options)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("betas", ["ones", "near_2"])
def test_repeated_keys_that_are_never_forgotten(
    dtype: torch.dtype, tolerance: float, betas: str, poisoned_memory: None
) -> None:
    # Without decay and with beta = 2 a write mirrors what its key reads: no error fades, and powers
    # of the keys' products reach 1e19.
    compute_in_bfloat16()
    problem = make_delta_problem("none", length=130, betas=betas, keys="repeated").cast(dtype)
    assert_close_to_recurrence(problem, tolerance, upstream=dtype)


def test_a_learned_decay_per_head_is_computed_in_float32(poisoned_memory: None) -> None:
    compute_in_bfloat16()
    problem = make_delta_problem("head", length=70, heads=2).cast(torch.bfloat16)
    upstream = {"upstream": torch.bfloat16}
    exact = delta_results(delta_recurrence, problem.cast(torch.float64), **upstream)
    actual = delta_results(delta_attention, problem, **upstream)
    for name in ("final_S", "d_decay", "d_beta", "d_S"):
        assert relative_error(actual[name], exact[name]) <= 1e-5, name


@pytest.mark.parametrize("widths", [(1, 1), (130, 20)])
def test_narrow_and_wide_heads(widths: tuple[int, int], poisoned_memory: None) -> None:
    key_width, value_width = widths
    problem = make_delta_problem(
        "scalar", length=66, key_width=key_width, value_width=value_width, segments=True
    )
    assert_close_to_recurrence(problem, 1e-5)


def assert_close_to_recurrence(
    problem: DeltaProblem,
    tolerance: float,
    tolerances: dict[str, float] | None = None,
    **options: Any,
) -> None:
    """Every output and gradient within `tolerance`, or its own in `tolerances`."""
    actual = delta_results(delta_attention, problem, **options)
    exact = delta_results(delta_recurrence, problem.cast(torch.float64), **options)
    errors = {name: relative_error(actual[name], exact[name]) for name in exact}
    limits = dict.fromkeys(errors, tolerance) | (tolerances or {})
    assert all(errors[name] <= limits[name] for name in errors), errors
    assert all(torch.isfinite(x).all() for x in actual.values())
