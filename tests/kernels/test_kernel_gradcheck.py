"""Hand-written backward formulas against finite differences in float64."""

from dataclasses import replace

import pytest
import torch
from kernel_oracle import Problem, call, can_normalize, every_form, make_problem
from torch import Tensor


@every_form
@pytest.mark.parametrize("segments", [False, True])
def test_gradcheck(chunked_backend: str, family: str, normalize: bool, segments: bool) -> None:
    check(small_problem(family, normalize, segments), chunked_backend)


def test_gradcheck_of_the_reference(family: str) -> None:
    check(small_problem(family, can_normalize(family), segments=True), "reference")


def small_problem(family: str, normalize: bool, segments: bool) -> Problem:
    problem = make_problem(
        family,
        length=7,
        batch=1,
        heads=2,
        key_width=2,
        value_width=3,
        normalize=normalize,
        segments=segments,
        seed=3,
    ).cast(torch.float64)
    if segments:
        documents = torch.tensor([[3, 3, 3, 4, 4, 6, 6]])
        problem = replace(problem, segments=documents)
    return problem


def check(problem: Problem, backend: str) -> None:
    names = list(problem.leaves())

    def function(*leaves: Tensor) -> tuple[Tensor, ...]:
        changed = replace(problem, **dict(zip(names, leaves, strict=True)))
        out, state = call(changed, chunk_size=4, scale=0.7, backend=backend)
        return (out, state.S) if state.z is None else (out, state.S, state.z)

    leaves = [x.clone().requires_grad_() for x in problem.leaves().values()]
    assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-7, rtol=1e-6)
