"""Random problems for the kernels, and the float64 reference they are measured against."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels import LinearState, linear_attention

BACKENDS = ["reference", "torch"]  # a new backend is covered by adding its name here
CHUNKED = [name for name in BACKENDS if name != "reference"]
FAMILIES = ["none", "head", "scalar", "channel"]
GATES = ["zero", "mild", "uniform", "half", "all_200", "all_20"]


@dataclass(frozen=True)
class Problem:
    """One call's tensors; `grad_*` are the upstream gradients of outputs and final state."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None
    S: Tensor
    z: Tensor | None
    segments: Tensor | None
    state_segment: Tensor | None

    def leaves(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name) for name in ("q", "k", "v", "decay", "S", "z")}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def cast(self, dtype: torch.dtype) -> "Problem":
        """Inputs in `dtype`; decays and states in float32, or float64 when that is asked for."""
        work = torch.float64 if dtype == torch.float64 else torch.float32
        changes = {
            name: tensor.detach().to(dtype if name in "qkv" else work)
            for name, tensor in self.leaves().items()
        }
        return replace(self, **changes)


def log_decays(gates: str, shape: tuple[int, ...]) -> Tensor:
    rand = torch.rand(shape)
    return {
        "zero": torch.zeros(shape),
        "mild": torch.nn.functional.logsigmoid(torch.randn(shape)) / 16,
        "uniform": -200 * rand,
        "half": torch.where(rand < 0.5, -200.0, -0.01),
        "all_200": torch.full(shape, -200.0),
        "all_20": torch.full(shape, -20.0),
    }[gates]


def make_problem(
    family: str,
    *,
    length: int = 65,
    batch: int = 2,
    heads: int = 2,
    key_width: int = 5,
    value_width: int = 7,
    gates: str = "mild",
    normalize: bool = False,
    segments: bool = False,
    seed: int = 0,
) -> Problem:
    """Float32, signed; with `normalize` q, k and z are positive, as the denominator demands."""
    torch.manual_seed(seed)
    q, k = torch.randn(2, batch, length, heads, key_width)
    v = torch.randn(batch, length, heads, value_width)
    S = torch.randn(batch, heads, key_width, value_width)
    z = torch.rand(batch, heads, key_width) + 0.5 if normalize else None
    if normalize:
        q, k = q.abs() + 0.1, k.abs() + 0.1
    shape = {"head": (heads,), "scalar": q.shape[:3], "channel": q.shape}.get(family)
    decay = None if shape is None else log_decays(gates, tuple(shape))
    documents = 3 + (torch.rand(batch, length) < 0.1).long().cumsum(1) if segments else None
    state_segment = torch.full((batch,), 3) if segments else None
    return Problem(q, k, v, decay, S, z, documents, state_segment)


def call(problem: Problem, **options: object) -> tuple[Tensor, LinearState]:
    state = LinearState(problem.S, problem.z, problem.state_segment)
    return linear_attention(
        problem.q,
        problem.k,
        problem.v,
        problem.decay,
        normalize=problem.z is not None,
        segments=problem.segments,
        state=state,
        **options,
    )


def outputs_and_gradients(
    problem: Problem,
    fixed: tuple[str, ...] = (),
    upstream: torch.dtype = torch.float32,
    **options: object,
) -> dict[str, Tensor]:
    """Outputs, final state and gradients of a random signed functional of all of them.

    No gradients are taken with respect to the tensors named in `fixed`. The weights of the
    functional, which are the upstream gradients, are exact in the type `upstream`.
    """
    leaves = {
        name: x.detach().clone().requires_grad_()
        for name, x in problem.leaves().items()
        if name not in fixed
    }
    out, state = call(replace(problem, **leaves), **options)
    results = {"out": out, "final_S": state.S}
    if state.z is not None:
        results["final_z"] = state.z
    gradients = torch.autograd.grad(random_functional(results, upstream), list(leaves.values()))
    results |= {f"d_{name}": grad for name, grad in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in results.items()}


def random_functional(results: dict[str, Tensor], upstream: torch.dtype = torch.float32) -> Tensor:
    """A fixed random signed sum of everything; its gradients are what the kernel receives."""
    generator = torch.Generator().manual_seed(7)
    work = results["final_S"].dtype
    return sum(
        (x.to(work) * torch.randn(x.shape, generator=generator).to(upstream).to(work)).sum()
        for x in results.values()
    )


def relative_error(actual: Tensor, expected: Tensor, floor: float = 1e-9) -> float:
    assert torch.isfinite(actual).all()
    difference = (actual.double() - expected.double()).norm()
    return (difference / expected.double().norm().clamp(min=floor)).item()


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
