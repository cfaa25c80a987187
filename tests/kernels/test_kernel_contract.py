"""Layouts, tracing, autocast, empty rows: how a caller may use the public function."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_oracle import (
    call,
    can_normalize,
    every_form,
    make_problem,
    outputs_and_gradients,
    relative_error,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import LinearState, linear_attention


def strided_inputs(layout: str, width: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A leaf and q, k, v as non-contiguous views of it."""
    batch, length, heads = 2, 70, 3
    if layout == "fused":
        leaf = torch.randn(batch, length, 3 * heads * width)
        return leaf, tuple(x.unflatten(2, (heads, width)) for x in leaf.split(heads * width, 2))
    if layout == "transposed":
        leaf = torch.randn(3, batch, heads, length, width)
        return leaf, tuple(x.transpose(1, 2) for x in leaf)
    leaf = torch.randn(3, batch, length, 1, width)
    return leaf, tuple(x.expand(batch, length, heads, width) for x in leaf)


@pytest.mark.parametrize("layout", ["fused", "transposed", "expanded_heads"])
@pytest.mark.parametrize("upstream", ["sum", "slice"])
def test_strided_inputs_and_gradients_equal_contiguous_ones(
    backend: str, family: str, layout: str, upstream: str
) -> None:
    # fla-org/flash-linear-attention#759, #1138
    width = 48
    torch.manual_seed(1)
    _, views = strided_inputs(layout, width)
    gates = make_problem(family, length=70, heads=3, key_width=width)
    beta = None if gates.beta is None else gates.beta / views[1].square().sum(3)

    def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out, _ = linear_attention(*leaves, gates.decay, beta, backend=backend)
        if upstream == "sum":
            return [out, *torch.autograd.grad(out.sum(), leaves)]
        joined = torch.cat([torch.randn(2, 70, 3, 8), out, torch.randn(2, 70, 3, 8)], dim=3)
        return [out, *torch.autograd.grad(joined[..., 20:40].square().sum(), leaves)]

    assert not views[0].is_contiguous()
    contiguous = run(tuple(x.contiguous() for x in views))
    for x, expected in zip(run(views), contiguous, strict=True):
        torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)


def test_the_final_state_alone_can_be_differentiated(backend: str, family: str) -> None:
    problem = make_problem(family, length=40)
    k = problem.k.clone().requires_grad_()
    _, state = call(replace(problem, k=k), backend=backend)
    (grad,) = torch.autograd.grad(state.S.sum(), k)
    k64 = problem.k.double().requires_grad_()
    exact = replace(problem.cast(torch.float64), k=k64)
    (expected,) = torch.autograd.grad(call(exact, backend="reference")[1].S.sum(), k64)
    assert relative_error(grad, expected) <= 1e-5


def test_reruns_are_bit_identical(backend: str, family: str) -> None:
    problem = make_problem(family, length=130, segments=True, normalize=can_normalize(family))
    first, second = (outputs_and_gradients(problem, backend=backend) for _ in range(2))
    for name, x in first.items():
        assert torch.equal(x, second[name]), name


@pytest.mark.parametrize(
    ("family", "length", "compiler", "dtype"),
    [
        ("head", 1, "eager", torch.float32),
        ("scalar", 37, "aot_eager", torch.float32),
        ("channel", 21, "aot_eager", torch.bfloat16),
        ("delta_scalar", 37, "aot_eager", torch.bfloat16),
    ],
)
def test_traces_without_graph_breaks(
    chunked_backend: str, family: str, length: int, compiler: str, dtype: torch.dtype
) -> None:
    torch._dynamo.reset()
    normalize = can_normalize(family)
    problem = make_problem(family, length=length, normalize=normalize, segments=True).cast(dtype)

    def results(function: object) -> list[Tensor]:
        leaves = {name: x.clone().requires_grad_() for name, x in problem.leaves().items()}
        out, state = function(replace(problem, **leaves))
        loss = out.square().sum() + state.S.sum()
        return [out, state.S, *torch.autograd.grad(loss, list(leaves.values()))]

    def function(p: object) -> tuple[Tensor, LinearState]:
        return call(p, chunk_size=16, backend=chunked_backend)

    compiled = torch.compile(function, fullgraph=True, backend=compiler)
    for x, expected in zip(results(compiled), results(function), strict=True):
        torch.testing.assert_close(x, expected)


class RecordOperands(TorchDispatchMode):
    """Collects the types that batched matrix products are given."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.dtypes |= {x.dtype for x in args}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("family", "dtype", "fixed", "expected"),
    [
        ("none", torch.bfloat16, (), torch.bfloat16),
        ("head", torch.bfloat16, ("decay",), torch.bfloat16),
        ("head", torch.bfloat16, (), torch.float32),  # a learned decay
        ("scalar", torch.bfloat16, (), torch.bfloat16),
        ("channel", torch.bfloat16, (), torch.bfloat16),
        ("scalar", torch.float16, (), torch.float32),  # sums may leave float16's range
        ("channel", torch.float32, (), torch.float32),
        ("delta_scalar", torch.bfloat16, (), torch.float32),  # writes undo earlier ones
    ],
)
def test_operand_type_of_large_products(
    family: str, dtype: torch.dtype, fixed: tuple[str, ...], expected: torch.dtype
) -> None:
    problem = make_problem(family, length=40).cast(dtype)
    with RecordOperands() as recorded:
        outputs_and_gradients(problem, fixed, backend="torch", chunk_size=16)
    assert recorded.dtypes == {expected}


def test_autocast_changes_nothing(backend: str, family: str) -> None:
    problem = make_problem(family, length=20)
    plain = outputs_and_gradients(problem, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = outputs_and_gradients(problem, backend=backend)
    for name, x in plain.items():
        assert torch.equal(x, under_autocast[name]), name


@every_form
@pytest.mark.parametrize("segments", [False, True])
def test_no_tokens_return_the_incoming_state(
    backend: str, family: str, normalize: bool, segments: bool
) -> None:
    problem = make_problem(family, length=0, normalize=normalize, segments=segments)
    out, state = call(problem, backend=backend)
    assert out.shape == (2, 0, 2, 7)
    assert state == LinearState(problem.S, problem.z, problem.state_segment)
    out, state = linear_attention(
        problem.q, problem.k, problem.v, problem.decay, problem.beta, normalize=normalize,
        segments=problem.segments, backend=backend,
    )  # fmt: skip
    assert (state.S == 0).all()
    assert (state.z is not None) == normalize
    assert (state.segment is not None) == segments


def test_auto_is_the_torch_backend_on_cpu(family: str) -> None:
    problem = make_problem(family)
    assert torch.equal(call(problem)[0], call(problem, backend="torch")[0])


def test_scale_cancels_when_normalised(backend: str) -> None:
    problem = make_problem("scalar", normalize=True)
    out, _ = call(problem, backend=backend)
    scaled, _ = call(problem, backend=backend, scale=0.1)
    assert torch.equal(out, scaled)
