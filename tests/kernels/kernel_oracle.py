"""The backends under test, and one assertion about them."""

import pytest
import torch

from kernels.problems import (
    FAMILIES,
    GATES,
    STRENGTHS,
    Problem,
    call,
    can_normalize,
    log_decays,
    make_problem,
    outputs_and_gradients,
    query_gradient_of_numerators,
    random_functional,
    relative_error,
)

__all__ = [
    "FAMILIES",
    "GATES",
    "STRENGTHS",
    "Problem",
    "call",
    "can_normalize",
    "log_decays",
    "make_problem",
    "outputs_and_gradients",
    "query_gradient_of_numerators",
    "random_functional",
    "relative_error",
]

# Triton's interpreter is slow: test_kernel_grid.py and test_triton_*.py cover that backend.
BACKENDS = ["reference", "torch"]
CHUNKED = [name for name in BACKENDS if name != "reference"]

# Every family, and again with a denominator where one makes sense.
FORMS = [(f, n) for n in (False, True) for f in FAMILIES if can_normalize(f) or not n]
every_form = pytest.mark.parametrize(("family", "normalize"), FORMS)


def assert_matches_reference(
    problem: Problem, dtype: torch.dtype, tolerance: float, **options: object
) -> None:
    # The reference sees the rounded inputs and upstream gradients, so that only the kernel's own
    # error counts.
    options["upstream"] = dtype
    actual = outputs_and_gradients(problem.cast(dtype), **options)
    options = {**options, "backend": "reference"}
    exact = outputs_and_gradients(problem.cast(dtype).cast(torch.float64), **options)
    errors = {name: relative_error(actual[name], exact[name]) for name in exact}
    assert max(errors.values()) <= tolerance, errors
