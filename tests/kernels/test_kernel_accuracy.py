"""Every backend against the float64 recurrence: outputs, states and all gradients."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from kernel_oracle import (
    FAMILIES,
    GATES,
    STRENGTHS,
    assert_matches_reference,
    call,
    can_normalize,
    every_form,
    make_problem,
    outputs_and_gradients,
    query_gradient_of_numerators,
    relative_error,
)
from torch import Tensor

from kernels import linear_attention

LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 130, 257]


def quadratic_form(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, beta: Tensor | None, normalize: bool
) -> Tensor:
    """The definition without a recurrence: sum over j <= i of exp(sum of decays) q_i.k_j u_j.

    u is v, or with beta what solves u_i + beta_i (the same sum for k_i, over j < i) = beta_i v_i.
    """
    length = q.shape[1]
    if decay is None:
        decay = torch.zeros_like(q)
    elif decay.dim() == 1:
        decay = decay[:, None].expand(q.shape)
    elif decay.dim() == 3:
        decay = decay[..., None].expand(q.shape)

    def weights(reader: Tensor, i: int, j: int) -> Tensor:
        return (reader[:, i] * k[:, j] * decay[:, j + 1 : i + 1].sum(1).exp()).sum(-1)

    if beta is not None:
        system = torch.zeros(*beta.mT.shape, length, dtype=v.dtype)
        for i in range(length):
            system[..., i, i] = 1
            for j in range(i):
                system[..., i, j] = beta[:, i] * weights(k, i, j)
        v = torch.linalg.solve(system, (beta[..., None] * v).transpose(1, 2)).transpose(1, 2)
    rows = []
    for i in range(length):
        stacked = torch.stack([weights(q, i, j) for j in range(i + 1)], 1)
        row = torch.einsum("bjh,bjhv->bhv", stacked, v[:, : i + 1])
        rows.append(row / stacked.sum(1)[..., None] if normalize else row)
    return torch.stack(rows, 1)


@every_form
def test_output_is_the_weighted_sum_over_the_past(
    backend: str, family: str, normalize: bool
) -> None:
    p = make_problem(family, length=21, normalize=normalize).cast(torch.float64)
    out, _ = linear_attention(
        p.q, p.k, p.v, p.decay, p.beta, normalize=normalize, chunk_size=8, backend=backend
    )
    expected = quadratic_form(p.q, p.k, p.v, p.decay, p.beta, normalize)
    assert relative_error(out, expected) <= 1e-12


@pytest.mark.parametrize("gates", GATES)
def test_float32_error_is_small_for_any_gates(backend: str, family: str, gates: str) -> None:
    problem = make_problem(family, gates=gates, length=130, key_width=16, value_width=16)
    assert_matches_reference(problem, torch.float32, 2e-5, backend=backend, scale=0.3)


@pytest.mark.parametrize("length", LENGTHS)
def test_float32_error_is_small_for_any_length(backend: str, family: str, length: int) -> None:
    normalize = length % 2 == 0 and can_normalize(family)
    options = {"normalize": normalize, "segments": length % 3 == 0}
    problem = make_problem(family, length=length, seed=length, **options)
    assert_matches_reference(problem, torch.float32, 2e-5, backend=backend)


@pytest.mark.parametrize("widths", [(1, 1), (1, 9), (33, 3), (16, 80), (130, 1)])
def test_any_key_and_value_width(backend: str, family: str, widths: tuple[int, int]) -> None:
    problem = make_problem(family, length=19, key_width=widths[0], value_width=widths[1])
    assert_matches_reference(problem, torch.float32, 5e-5, backend=backend)


@every_form
@pytest.mark.parametrize("segments", [False, True])
def test_normaliser_and_documents_together(
    backend: str, family: str, normalize: bool, segments: bool
) -> None:
    problem = make_problem(family, length=77, gates="half", normalize=normalize, segments=segments)
    # A learned decay of a head sums thousands of signed terms, which cancel more or less by luck.
    assert_matches_reference(problem, torch.float32, 1e-4, backend=backend, chunk_size=16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_inputs(backend: str, family: str, dtype: torch.dtype) -> None:
    problem = make_problem(family, length=33, gates="mild", normalize=can_normalize(family))
    assert_matches_reference(problem, dtype, 1e-2, backend=backend, chunk_size=16)
    out, state = call(problem.cast(dtype), backend=backend)
    assert out.dtype == dtype
    assert all(x.dtype == torch.float32 for x in (state.S, state.z) if x is not None)


@pytest.mark.parametrize("gates", GATES)
def test_bfloat16_error_is_small_for_any_gates(
    chunked_backend: str, family: str, gates: str
) -> None:
    problem = make_problem(
        family, length=65, batch=1, key_width=16, value_width=16, gates=gates, segments=True
    )
    options = {"backend": chunked_backend, "chunk_size": 32, "scale": 0.3}
    assert_matches_reference(problem, torch.bfloat16, 1e-2, **options)
    if family == "head":
        assert_matches_reference(problem, torch.bfloat16, 1e-2, fixed=("decay",), **options)


@pytest.mark.parametrize("gates", ["zero", "mild", "half", "all_200"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if can_normalize(family)])
def test_bfloat16_error_of_normalised_outputs(
    chunked_backend: str, family: str, gates: str
) -> None:
    problem = make_problem(
        family, length=65, batch=1, key_width=16, value_width=16, gates=gates, normalize=True
    ).cast(torch.bfloat16)
    exact_problem = problem.cast(torch.float64)
    # A learned decay per head is multiplied in float32, and so would not be the question here.
    fixed = ("decay",) if family == "head" else ()
    options = {"fixed": fixed, "upstream": torch.bfloat16}
    actual = outputs_and_gradients(problem, **options, backend=chunked_backend, chunk_size=32)
    exact = outputs_and_gradients(exact_problem, **options, backend="reference")
    floors = {"d_q": query_gradient_of_numerators(exact_problem).norm().item()}
    for name, expected in exact.items():
        assert relative_error(actual[name], expected, floors.get(name, 1e-9)) <= 1e-2, name
    assert relative_error(actual["final_z"], exact["final_z"]) <= 1e-6


@pytest.mark.parametrize("chunk_size", [1, 3, 16, 64, 77, 128])
@pytest.mark.parametrize("input_scale", [1.0, 1e-4])
def test_every_chunk_size_gives_the_recurrence(
    chunked_backend: str, family: str, chunk_size: int, input_scale: float
) -> None:
    base = make_problem(family, length=77)
    scaled = {name: getattr(base, name) * input_scale for name in ("q", "k", "v", "S")}
    problem = replace(base, **scaled)
    exact = outputs_and_gradients(problem.cast(torch.float64), backend="reference")
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        actual = outputs_and_gradients(
            problem.cast(dtype), backend=chunked_backend, chunk_size=chunk_size
        )
        for name, expected in exact.items():
            assert relative_error(actual[name], expected, floor=1e-30) <= tolerance, name


@pytest.mark.parametrize("family", [family for family in FAMILIES if not can_normalize(family)])
@pytest.mark.parametrize("strengths", STRENGTHS)
@pytest.mark.parametrize("distinct_keys", [None, 1, 2])
@pytest.mark.parametrize("gates", ["mild", "half"])
def test_writes_of_any_strength_to_new_and_to_repeated_keys(
    chunked_backend: str, family: str, strengths: str, distinct_keys: int | None, gates: str
) -> None:
    problem = make_problem(
        family, length=130, batch=1, key_width=16, value_width=16, gates=gates,
        strengths=strengths, distinct_keys=distinct_keys,
    )  # fmt: skip
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 1e-2)):
        assert_matches_reference(problem, dtype, tolerance, backend=chunked_backend, scale=0.3)


@pytest.mark.parametrize("pattern", ["closed", "open", "random"])
def test_saturated_gates_over_a_long_row(backend: str, pattern: str) -> None:
    # fla-org/flash-linear-attention#77, #122: exp(b) * exp(-b) overflows in such chunks.
    torch.manual_seed(0)
    length = 1000
    q, k, v = torch.randn(3, 1, length, 1, 16)
    sign = torch.where(torch.rand(q.shape) < 0.5, -1.0, 1.0)
    z = 40 * {"closed": -torch.ones(q.shape), "open": torch.ones(q.shape), "random": sign}[pattern]
    weight = torch.randn(v.shape)

    def run(dtype: torch.dtype, name: str) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (q.clone(), k.clone(), v.clone(), z)]
        leaves = [x.detach().requires_grad_() for x in leaves]
        out, state = linear_attention(*leaves[:3], F.logsigmoid(leaves[3]), backend=name)
        loss = (out * weight.to(dtype)).sum() + state.S.sum()
        return [out.detach(), state.S.detach(), *torch.autograd.grad(loss, leaves)]

    actual, exact = run(torch.float32, backend), run(torch.float64, "reference")
    for x, ref in zip(actual[:2], exact[:2], strict=True):
        assert (x - ref).abs().max() <= 1e-4 * ref.abs().max().clamp(min=1)
    for x, ref in zip(actual[2:], exact[2:], strict=True):
        assert relative_error(x, ref, floor=1e-6) <= 1e-3


def test_a_very_long_row_stays_accurate_and_causal(chunked_backend: str) -> None:
    torch.manual_seed(0)
    length = 40_003
    q, k, v, z = torch.randn(4, 1, length, 1, 16)
    decay = F.logsigmoid(z) / 16
    out, state = linear_attention(q, k, v, decay, backend=chunked_backend)
    cut, _ = linear_attention(*(x[:, :40_000] for x in (q, k, v, decay)), backend=chunked_backend)
    assert (out[:, :40_000] - cut).abs().max() <= 1e-6
    # In float64 the chunked form equals the recurrence to 1e-10, see above, and is much faster.
    exact, exact_state = linear_attention(
        *(x.double() for x in (q, k, v, decay)), backend=chunked_backend
    )
    assert (out - exact).abs().max() <= 1e-4 * exact.abs().max().clamp(min=1)
    assert relative_error(state.S, exact_state.S) <= 1e-5


def test_hand_computed_retention(backend: str) -> None:
    ones = torch.ones(1, 5, 1, 1)
    v = torch.arange(1.0, 6.0).view(1, 5, 1, 1)
    out, state = linear_attention(ones, ones, v, torch.tensor([0.5]).log(), backend=backend)
    torch.testing.assert_close(out.flatten(), torch.tensor([1, 2.5, 4.25, 6.125, 8.0625]))
    torch.testing.assert_close(state.S.flatten(), torch.tensor([8.0625]))


def test_hand_computed_delta_rule(backend: str) -> None:
    # One key: the state moves the fraction beta of the way to the value; beyond 1 it overshoots.
    ones = torch.ones(1, 5, 1, 1)
    v = torch.tensor([4.0, 0.0, 8.0, 8.0, 1.0]).view(1, 5, 1, 1)
    beta = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5]).view(1, 5, 1)
    out, _ = linear_attention(ones, ones, v, beta=beta, backend=backend)
    torch.testing.assert_close(out.flatten(), torch.tensor([2.0, 0.0, 16.0, 16.0, -6.5]))
    decay = torch.tensor([0.5]).log()
    out, _ = linear_attention(ones, ones, v, decay, beta, backend=backend)
    torch.testing.assert_close(out.flatten(), torch.tensor([2.0, 0.0, 16.0, 8.0, -0.5]))


def test_a_key_written_in_full_is_read_back(backend: str) -> None:
    torch.manual_seed(0)
    k = F.normalize(torch.randn(1, 90, 2, 16), dim=3)
    v = torch.randn(1, 90, 2, 5)
    out, _ = linear_attention(k, k, v, beta=torch.ones(1, 90, 2), backend=backend)
    torch.testing.assert_close(out, v, rtol=0, atol=1e-5)


def test_slow_decays_do_not_round_to_one(backend: str) -> None:
    # syncdoth/RetNet#6: in 16 bit, gamma of heads 4 to 7 is exactly 1.
    heads = 8
    decay = torch.log1p(-(2.0 ** (-5 - torch.arange(heads))))
    impulse = torch.zeros(1, 4097, heads, 1, dtype=torch.bfloat16)
    impulse[:, 0] = 1
    _, state = linear_attention(impulse, impulse, impulse, decay, backend=backend)
    expected = torch.tensor([3.33e-4, 1.83e-2, 0.1353, 0.3678])
    torch.testing.assert_close(state.S.flatten()[4:], expected, rtol=0.02, atol=0)


def test_long_float16_sums_do_not_overflow(chunked_backend: str) -> None:
    ones = torch.ones(1, 16_384, 1, 64, dtype=torch.float16)
    out, _ = linear_attention(ones, ones, ones, normalize=True, backend=chunked_backend)
    torch.testing.assert_close(out, ones, rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", [family for family in FAMILIES if can_normalize(family)])
def test_zero_denominator_gives_zero_and_finite_gradients(backend: str, family: str) -> None:
    problem = make_problem(family, length=20, normalize=True)
    q, k, v = (x.clone().requires_grad_() for x in (problem.q, problem.k, problem.v))
    silent = torch.ones(1, 20, 1, 1)
    silent[:, :6] = 0
    decay = None if problem.decay is None else problem.decay.clone().requires_grad_()
    out, _ = linear_attention(q, k * silent, v, decay, normalize=True, backend=backend)
    assert (out[:, :6] == 0).all()
    assert (out[:, 6:] != 0).all()
    leaves = [q, k, v] if decay is None else [q, k, v, decay]
    grads = torch.autograd.grad(out.square().sum(), leaves)
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert (grads[0][:, :6] == 0).all()


@pytest.mark.parametrize("family", [family for family in FAMILIES if can_normalize(family)])
@pytest.mark.parametrize(("weight", "expected"), [(1e-25, 1.0), (1e-36, 0.0), (1e-40, 0.0)])
def test_tiny_weights_give_finite_gradients(
    backend: str, family: str, weight: float, expected: float
) -> None:
    """The mean value, or 0 where float32 could not divide gradients by their sum."""
    problem = make_problem(family, length=20, normalize=True)
    q, k = (torch.full_like(x, weight**0.5).requires_grad_() for x in (problem.q, problem.k))
    v = torch.ones_like(problem.v).requires_grad_()

    def out(tokens: int) -> torch.Tensor:
        decay = problem.decay
        if decay is not None and decay.dim() > 1:
            decay = decay[:, :tokens]
        parts = (x[:, :tokens] for x in (q, k, v))
        return linear_attention(*parts, decay, normalize=True, backend=backend)[0]

    whole = out(20)
    torch.testing.assert_close(whole, torch.full_like(whole, expected), rtol=1e-5, atol=0)
    grads = torch.autograd.grad(whole.square().sum(), [q, k, v])
    assert all(torch.isfinite(grad).all() for grad in grads)
    with torch.no_grad():  # as few tokens have a kernel of their own
        torch.testing.assert_close(out(5), whole[:, :5], rtol=1e-5, atol=0)
