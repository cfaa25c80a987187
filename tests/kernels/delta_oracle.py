"""The delta rule one token at a time, and random calls of its Triton kernels."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import LinearState
from kernels.problems import log_decays, random_functional
from kernels.triton.delta_ops import delta_attention

BETAS = ["near_0", "uniform", "near_2"]


def delta_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor,
    *,
    scale: float,
    segments: Tensor | None,
    state: LinearState | None,
    chunk_size: int | None = None,
) -> tuple[Tensor, LinearState]:
    """S_t = D_t S_{t-1} + beta_t k_t (v_t - k_t^T D_t S_{t-1})^T, y_t = scale q_t^T S_t."""
    batch, length, heads, key_width = q.shape
    S = q.new_zeros(batch, heads, key_width, v.shape[3]) if state is None else state.S
    segment = None if segments is None else segments[:, 0] if state is None else state.segment
    outputs = []
    for t in range(length):
        if segments is not None:
            S = S.masked_fill((segments[:, t] != segment)[:, None, None, None], 0.0)
            segment = segments[:, t]
        if decay is not None:
            g = decay[None] if decay.dim() == 1 else decay[:, t]
            S = S * (g if g.dim() == 3 else g[..., None]).exp()[..., None]
        error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * error)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S) * scale)
    return torch.stack(outputs, 1), LinearState(S, None, segment)


@dataclass(frozen=True)
class DeltaProblem:
    """One call's tensors; keys are unit vectors."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None
    beta: Tensor
    S: Tensor
    segments: Tensor | None
    state_segment: Tensor | None

    def leaves(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name) for name in ("q", "k", "v", "decay", "beta", "S")}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def cast(self, dtype: torch.dtype) -> "DeltaProblem":
        work = torch.float64 if dtype == torch.float64 else torch.float32
        changes = {n: x.to(dtype if n in "qkv" else work) for n, x in self.leaves().items()}
        return replace(self, **changes)


def make_delta_problem(
    family: str,
    *,
    length: int = 65,
    batch: int = 1,
    heads: int = 1,
    key_width: int = 16,
    value_width: int = 16,
    gates: str = "mild",
    betas: str = "uniform",
    keys: str = "any",
    segments: bool = False,
) -> DeltaProblem:
    torch.manual_seed(0)
    q, k = torch.randn(2, batch, length, heads, key_width)
    if keys == "repeated":
        k = k[:, torch.arange(length) % 3]
    v = torch.randn(batch, length, heads, value_width)
    shape = {"head": (heads,), "scalar": q.shape[:3], "channel": q.shape}.get(family)
    decay = None if shape is None else log_decays(gates, tuple(shape))
    rand = torch.rand(q.shape[:3])
    beta = {
        "near_0": 1e-3 * rand,
        "ones": torch.ones(q.shape[:3]),
        "uniform": 2 * rand,
        "near_2": 2 - 1e-2 * rand,
    }[betas]
    S = torch.randn(batch, heads, key_width, value_width)
    documents = 3 + (torch.rand(batch, length) < 0.1).long().cumsum(1) if segments else None
    of_state = torch.full((batch,), 3) if segments else None
    return DeltaProblem(q, F.normalize(k, dim=3), v, decay, beta, S, documents, of_state)


def delta_results(
    function: Callable[..., tuple[Tensor, LinearState]],
    problem: DeltaProblem,
    *,
    fixed: tuple[str, ...] = (),
    upstream: torch.dtype = torch.float32,
    arrange: Callable[[DeltaProblem], DeltaProblem] = lambda problem: problem,
    with_state: bool = True,
    scale: float = 0.3,
    chunk_size: int | None = None,
) -> dict[str, Tensor]:
    """Outputs, final state and gradients of a random functional of both."""
    leaves = {
        name: x.detach().clone().requires_grad_()
        for name, x in problem.leaves().items()
        if name not in fixed and (with_state or name != "S")
    }
    p = arrange(replace(problem, **leaves))
    state = LinearState(p.S, None, p.state_segment) if with_state else None
    options = {"scale": scale, "segments": p.segments, "state": state, "chunk_size": chunk_size}
    out, final = function(p.q, p.k, p.v, p.decay, p.beta, **options)
    results = {"out": out, "final_S": final.S}
    gradients = torch.autograd.grad(random_functional(results, upstream), list(leaves.values()))
    results |= {f"d_{name}": grad for name, grad in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in results.items()}


__all__ = [
    "BETAS",
    "DeltaProblem",
    "delta_attention",
    "delta_recurrence",
    "delta_results",
    "make_delta_problem",
]
