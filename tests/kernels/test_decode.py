"""Rows in pieces: any split with carried states is the whole row, through every backend."""

from dataclasses import replace

import pytest
import torch
from kernel_oracle import Problem, call, every_form, make_problem, relative_error
from torch import Tensor

from kernels import LinearState
from kernels.triton.blocks import MOST_STEPS, decode_options
from kernels.triton.decode_op import decode, decodes

SPLIT = (37, 1, 29, 73)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def in_pieces(problem: Problem, split: tuple[int, ...], **options: object) -> dict[str, Tensor]:
    """Outputs and the final state of the row, call after call."""
    outputs, state = [], LinearState(problem.S, problem.z, problem.state_segment)
    start = 0
    for length in split:
        piece = _tokens(problem, slice(start, start + length))
        out, state = call(
            replace(piece, S=state.S, z=state.z, state_segment=state.segment), **options
        )
        outputs.append(out)
        start += length
    return {"out": torch.cat(outputs, 1), "S": state.S, "z": state.z}


def _tokens(p: Problem, part: slice) -> Problem:
    decay = p.decay if p.decay is None or p.decay.dim() == 1 else p.decay[:, part]
    beta = None if p.beta is None else p.beta[:, part]
    documents = None if p.segments is None else p.segments[:, part]
    tokens = {"q": p.q[:, part], "k": p.k[:, part], "v": p.v[:, part]}
    return replace(p, **tokens, decay=decay, beta=beta, segments=documents)


def assert_pieces_are_the_whole(
    problem: Problem, split: tuple[int, ...], dtype: torch.dtype = torch.float32, **options: object
) -> None:
    problem = problem.cast(dtype)
    exact, state = call(problem.cast(torch.float64), backend="reference")
    pieces = in_pieces(problem, split, **options)
    assert pieces["out"].dtype == dtype
    for name, expected in (("out", exact), ("S", state.S), ("z", state.z)):
        if expected is not None:
            assert relative_error(pieces[name], expected) <= TOLERANCES[dtype], name


@pytest.mark.parametrize("backend", ["reference", "torch", "triton"])
@every_form
def test_pieces_of_a_row_equal_the_recurrence(backend: str, family: str, normalize: bool) -> None:
    problem = make_problem(
        family, batch=1, heads=2, length=sum(SPLIT), normalize=normalize, segments=True
    )
    assert_pieces_are_the_whole(problem, SPLIT, backend=backend)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@every_form
def test_single_tokens_equal_the_recurrence(
    family: str, normalize: bool, dtype: torch.dtype
) -> None:
    problem = make_problem(family, length=20, normalize=normalize, segments=True, gates="half")
    assert_pieces_are_the_whole(problem, (1, 1, 16, 2), dtype, backend="triton")


@pytest.mark.parametrize(("keys", "values"), [(300, 20), (16, 700), (5000, 3)])
def test_heads_of_any_width_are_decoded(keys: int, values: int) -> None:
    problem = make_problem(
        "channel", batch=1, heads=1, length=4, key_width=keys, value_width=values, normalize=True
    )
    assert_pieces_are_the_whole(problem, (1, 3), backend="triton")


def test_views_and_absent_states_are_decoded() -> None:
    p = make_problem("delta_channel", length=12)
    views = {n: getattr(p, n).transpose(1, 2).contiguous().transpose(1, 2) for n in ("q", "k", "v")}
    expected = call(p, with_state=False, backend="reference")
    actual = call(replace(p, **views), with_state=False, backend="triton")
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual[1].S, expected[1].S, rtol=1e-5, atol=1e-5)


def test_where_no_key_has_weight_the_output_is_0() -> None:
    p = make_problem("none", length=2, normalize=True)
    zeros = replace(p, k=torch.zeros_like(p.k), z=torch.zeros_like(p.z))
    assert not call(zeros, backend="triton")[0].any()


def test_few_tokens_without_gradients_are_decoded() -> None:
    p = make_problem("scalar", length=MOST_STEPS)
    decay = p.decay.clone().requires_grad_()
    assert decodes(MOST_STEPS, p.q, None)
    assert not decodes(MOST_STEPS + 1, p.q, None)
    assert not decodes(1, p.q, decay)
    with torch.no_grad():
        assert decodes(1, p.q, decay)


def test_short_rows_still_have_gradients() -> None:
    p = make_problem("delta_scalar", length=3)
    v = p.v.clone().requires_grad_()
    gradients = [
        torch.autograd.grad(call(replace(p, v=v), backend=backend)[0].square().sum(), v)[0]
        for backend in ("triton", "reference")
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_operator_keeps_pytorchs_rules(normalize: bool) -> None:
    p = make_problem("head", length=2, normalize=normalize, segments=True)
    inputs = (p.q, p.k, p.v, p.decay, p.beta, p.segments, p.S, p.z, p.state_segment, 1.0, normalize)
    torch.library.opcheck(decode, inputs)


def test_the_state_of_a_program_fits_into_registers() -> None:
    for keys, values in [(16, 16), (64, 64), (128, 128), (256, 256), (2145, 64), (9000, 64)]:
        options = decode_options(keys, values)
        numbers = options["BK"] * options["BV"] / (32 * options["num_warps"])
        assert numbers <= 64, (keys, values)
        assert options["BK"] >= keys
