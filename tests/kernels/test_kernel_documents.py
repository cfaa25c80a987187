"""What may not pass: from the future, from one document to another, through the carried state."""

from dataclasses import replace

import pytest
import torch
from kernel_oracle import (
    Problem,
    call,
    every_form,
    make_problem,
    outputs_and_gradients,
    random_functional,
    relative_error,
)
from torch import Tensor

from kernels import LinearState, linear_attention


def replace_tokens(problem: Problem, tokens: slice) -> Problem:
    torch.manual_seed(99)
    changes = {}
    for name in ("q", "k", "v"):
        changed = getattr(problem, name).clone()
        changed[:, tokens] = 100 * torch.randn_like(changed[:, tokens])
        changes[name] = changed.abs() if problem.z is not None and name != "v" else changed
    if problem.beta is not None:
        changes["k"][:, tokens] = torch.nn.functional.normalize(changes["k"][:, tokens], dim=3)
        changes["beta"] = problem.beta.clone()
        changes["beta"][:, tokens] = 2 * torch.rand_like(problem.beta[:, tokens])
    if problem.decay is not None and problem.decay.dim() > 1:
        decay = problem.decay.clone()
        decay[:, tokens] = -torch.rand_like(decay[:, tokens])
        changes["decay"] = decay
    return replace(problem, **changes)


def with_documents(problem: Problem, *lengths: int) -> Problem:
    numbers = torch.cat([torch.full((n,), 3 + i) for i, n in enumerate(lengths)])
    return replace(problem, segments=numbers.expand(problem.q.shape[0], -1))


@every_form
def test_the_past_does_not_see_the_future(backend: str, family: str, normalize: bool) -> None:
    # fkodom/yet-another-retnet#24: a head that never forgets (log-decay 0) leaked.
    problem = make_problem(family, length=129, heads=3, normalize=normalize)
    if family.endswith("head"):
        problem = replace(problem, decay=torch.tensor([0.0, -0.1, -2.0]))
    out, _ = call(problem, chunk_size=64, backend=backend)
    changed, _ = call(replace_tokens(problem, slice(80, None)), chunk_size=64, backend=backend)
    assert (out[:, :80] - changed[:, :80]).abs().max() <= 1e-6
    assert (out[:, 80:] - changed[:, 80:]).abs().max() > 0.1


@every_form
@pytest.mark.parametrize("changed_first", [False, True])
def test_a_document_is_bitwise_unchanged_when_its_neighbour_changes(
    backend: str, family: str, normalize: bool, changed_first: bool
) -> None:
    problem = make_problem(family, length=129, normalize=normalize, segments=True)
    problem = with_documents(problem, 50, 79)
    first, second = slice(0, 50), slice(50, 129)
    changed, kept = (first, second) if changed_first else (second, first)
    options = {"chunk_size": 32, "backend": backend}
    before = outputs_and_gradients(problem, **options)
    after = outputs_and_gradients(replace_tokens(problem, changed), **options)
    for name in ("out", "d_q", "d_k", "d_v", "d_decay", "d_beta"):
        if name in before and before[name].dim() > 1:
            assert torch.equal(before[name][:, kept], after[name][:, kept]), name
            assert not torch.equal(before[name][:, changed], after[name][:, changed]), name
    for name in ("final_S", "final_z") if changed_first else ("d_S", "d_z"):
        if name in before:
            assert torch.equal(before[name], after[name]), name


@pytest.mark.parametrize("lengths", [(20, 1, 44), (1, 63, 1), (16, 16, 33)])
def test_packed_documents_equal_separate_calls(
    backend: str, family: str, lengths: tuple[int, ...]
) -> None:
    problem = with_documents(make_problem(family, segments=True), *lengths)
    out, state = call(problem, chunk_size=16, backend=backend)
    start = 0
    for number, length in enumerate(lengths):
        tokens = slice(start, start + length)
        start += length
        decay = problem.decay
        if decay is not None and decay.dim() > 1:
            decay = decay[:, tokens]
        alone, alone_state = linear_attention(
            *(x[:, tokens] for x in (problem.q, problem.k, problem.v)),
            decay,
            None if problem.beta is None else problem.beta[:, tokens],
            state=LinearState(problem.S, None, None) if number == 0 else None,
            backend=backend,
        )
        assert relative_error(out[:, tokens], alone) <= 1e-6
    assert relative_error(state.S, alone_state.S) <= 1e-6
    assert torch.equal(state.segment, problem.segments[:, -1])


def test_a_state_of_another_document_is_not_used(backend: str, family: str) -> None:
    problem = with_documents(make_problem(family, segments=True), 65)
    stale = replace(problem, state_segment=torch.full((2,), 1))
    results = outputs_and_gradients(stale, chunk_size=16, backend=backend)
    fresh = outputs_and_gradients(replace(problem, S=0 * problem.S), backend=backend, chunk_size=16)
    assert torch.equal(results["out"], fresh["out"])
    assert (results["d_S"] == 0).all()


@every_form
@pytest.mark.parametrize("segments", [False, True])
def test_calls_with_carried_state_equal_one_call(
    backend: str, family: str, segments: bool, normalize: bool
) -> None:
    problem = make_problem(family, length=140, segments=segments, normalize=normalize)
    whole = outputs_and_gradients(problem, chunk_size=32, backend=backend)
    leaves = {name: x.clone().requires_grad_() for name, x in problem.leaves().items()}
    p = replace(problem, **leaves)
    state, outputs, start = LinearState(p.S, p.z, p.state_segment), [], 0
    for length in (37, 1, 29, 73):
        tokens = slice(start, start + length)
        start += length

        def part(x: Tensor | None, tokens: slice = tokens) -> Tensor | None:
            return x if x is None or x.dim() == 1 else x[:, tokens]

        out, state = linear_attention(
            p.q[:, tokens],
            p.k[:, tokens],
            p.v[:, tokens],
            part(p.decay),
            part(p.beta),
            normalize=normalize,
            segments=part(p.segments),
            state=state,
            chunk_size=32,
            backend=backend,
        )
        outputs.append(out)
    results = {"out": torch.cat(outputs, 1), "final_S": state.S}
    if normalize:
        results["final_z"] = state.z
    grads = torch.autograd.grad(random_functional(results), list(leaves.values()))
    results |= {f"d_{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    for name, x in results.items():
        assert relative_error(x, whole[name]) <= 1e-5, name
