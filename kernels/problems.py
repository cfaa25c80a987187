"""Random calls of `linear_attention`, and how far a backend is from the float64 recurrence.

What `python -m kernels.check` and the tests measure with.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.api import linear_attention
from kernels.state import LinearState

DECAYS = ["none", "head", "scalar", "channel"]
FAMILIES = [*DECAYS, *(f"delta_{decay}" for decay in DECAYS)]  # additive, then the delta rule
GATES = ["zero", "mild", "uniform", "half", "all_200", "all_20"]
STRENGTHS = ["near_0", "uniform", "near_2", "half"]


@dataclass(frozen=True)
class Problem:
    """One call's tensors; `grad_*` are the upstream gradients of outputs and final state."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None
    beta: Tensor | None
    S: Tensor
    z: Tensor | None
    segments: Tensor | None
    state_segment: Tensor | None

    def leaves(self) -> dict[str, Tensor]:
        names = ("q", "k", "v", "decay", "beta", "S", "z")
        tensors = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def to(self, device: str | torch.device) -> "Problem":
        tensors = {n: x.to(device) for n, x in vars(self).items() if x is not None}
        return replace(self, **tensors)

    def cast(self, dtype: torch.dtype) -> "Problem":
        """Inputs in `dtype`; all else in float32, or in float64 when that is asked for."""
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


def write_strengths(kind: str, shape: tuple[int, ...]) -> Tensor:
    """Between 0 and 2, which is stable for keys of length 1."""
    rand = torch.rand(shape)
    return {
        "near_0": rand / 1000,
        "uniform": 2 * rand,
        "near_2": 2 - rand / 1000,
        "half": torch.where(rand < 0.5, 0.001, 1.999),
    }[kind]


def can_normalize(family: str) -> bool:
    """Whether a denominator makes sense: not for the delta rule."""
    return family in DECAYS


def make_problem(
    family: str,
    *,
    length: int = 65,
    batch: int = 2,
    heads: int = 2,
    key_width: int = 5,
    value_width: int = 7,
    gates: str = "mild",
    strengths: str = "uniform",
    distinct_keys: int | None = None,
    normalize: bool = False,
    segments: bool = False,
    seed: int = 0,
) -> Problem:
    """Float32, signed; with `normalize` q, k and z are positive, as the denominator demands.

    Keys of the delta rule have length 1. distinct_keys: so many keys are repeated over and over.
    """
    torch.manual_seed(seed)
    q, k = torch.randn(2, batch, length, heads, key_width)
    v = torch.randn(batch, length, heads, value_width)
    S = torch.randn(batch, heads, key_width, value_width)
    z = torch.rand(batch, heads, key_width) + 0.5 if normalize else None
    if normalize:
        q, k = q.abs() + 0.1, k.abs() + 0.1
    if distinct_keys is not None:
        k = k[:, torch.arange(length) % distinct_keys]
    shapes = {"head": (heads,), "scalar": q.shape[:3], "channel": q.shape}
    shape = shapes.get(family.removeprefix("delta_"))
    decay = None if shape is None else log_decays(gates, tuple(shape))
    beta = None
    if family.startswith("delta_"):
        k = torch.nn.functional.normalize(k, dim=3)
        beta = write_strengths(strengths, tuple(q.shape[:3]))
    documents = 3 + (torch.rand(batch, length) < 0.1).long().cumsum(1) if segments else None
    state_segment = torch.full((batch,), 3) if segments else None
    return Problem(q, k, v, decay, beta, S, z, documents, state_segment)


def call(
    problem: Problem, with_state: bool = True, **options: object
) -> tuple[Tensor, LinearState]:
    state = LinearState(problem.S, problem.z, problem.state_segment) if with_state else None
    return linear_attention(
        problem.q,
        problem.k,
        problem.v,
        problem.decay,
        problem.beta,
        normalize=problem.z is not None,
        segments=problem.segments,
        state=state,
        **options,
    )


def outputs(problem: Problem, with_state: bool = True, **options: object) -> dict[str, Tensor]:
    """Outputs and final state."""
    out, state = call(problem, with_state, **options)
    results = {"out": out, "final_S": state.S}
    return results if state.z is None else {**results, "final_z": state.z}


def outputs_and_gradients(
    problem: Problem,
    fixed: tuple[str, ...] = (),
    upstream: torch.dtype = torch.float32,
    arrange: Callable[[Problem], Problem] = lambda problem: problem,
    with_state: bool = True,
    **options: object,
) -> dict[str, Tensor]:
    """Outputs, final state and gradients of a random signed functional of all of them.

    No gradients are taken with respect to the tensors named in `fixed`. The weights of the
    functional, which are the upstream gradients, are exact in the type `upstream`. `arrange` lays
    out the tensors of the call, differentiably.
    """
    fixed = fixed if with_state else (*fixed, "S", "z")
    leaves = {
        name: x.detach().clone().requires_grad_()
        for name, x in problem.leaves().items()
        if name not in fixed
    }
    results = outputs(arrange(replace(problem, **leaves)), with_state, **options)
    gradients = torch.autograd.grad(random_functional(results, upstream), list(leaves.values()))
    results |= {f"d_{name}": grad for name, grad in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in results.items()}


def random_functional(results: dict[str, Tensor], upstream: torch.dtype = torch.float32) -> Tensor:
    """A fixed random signed sum of everything; its gradients are what the kernel receives."""
    generator = torch.Generator().manual_seed(7)
    work = results["final_S"].dtype
    return sum(
        (
            x.to(work) * torch.randn(x.shape, generator=generator).to(x.device, upstream).to(work)
        ).sum()
        for x in results.values()
    )


def relative_error(actual: Tensor, expected: Tensor, floor: float = 1e-9) -> float:
    """|actual - expected| / max(|expected|, floor), norms over all elements; NaN if any is NaN."""
    difference = (actual.double() - expected.double()).norm()
    return (difference / expected.double().norm().clamp(min=floor)).item()


def worst_of(errors: dict[str, float]) -> tuple[str, float]:
    """The name with the largest error, and that error; NaN counts as the largest."""
    return max(errors.items(), key=lambda item: (item[1] != item[1], item[1]))


def query_gradient_of_numerators(problem: Problem, with_state: bool = True) -> Tensor:
    """Gradient of the queries if the denominators were constants.

    A token that sees only itself has its value as output, whatever its query: there the gradient of
    the query is a difference of two equal parts, and this is the measure of their rounding.
    """
    q = problem.q.clone().requires_grad_()
    sums = replace(problem, S=problem.z[..., None], v=torch.ones_like(problem.v[..., :1]), z=None)
    denominators, _ = call(sums, with_state, backend="reference")
    numerators, _ = call(replace(problem, q=q, z=None), with_state, backend="reference")
    weight = torch.randn(numerators.shape, generator=torch.Generator().manual_seed(7)).to(q.device)
    return torch.autograd.grad((numerators / denominators * weight).sum(), q)[0]
