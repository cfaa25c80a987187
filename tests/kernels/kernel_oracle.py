"""The backends under test, and one assertion about them."""

import torch

from kernels.problems import (
    FAMILIES,
    GATES,
    Problem,
    call,
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
    "Problem",
    "call",
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
