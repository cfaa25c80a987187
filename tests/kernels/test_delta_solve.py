"""The triangular systems of tiles, interpreted, against float64."""

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from kernel_oracle import relative_error

from kernels.triton.solve import solve


@triton.jit
def solve_one(lower, beta, solved):
    index = tl.arange(0, 64)
    pairs = index[:, None] * 64 + index[None, :]
    tl.store(solved + pairs, solve(tl.load(lower + pairs), tl.load(beta + index), "tf32x3"))


@pytest.mark.parametrize("beta", [0.0, 1.0, 1.99, 2.0])
@pytest.mark.parametrize("keys", ["any", "one", "nearly_one", "two_in_turn"])
def test_systems_of_unit_keys_are_solved_to_float32(keys: str, beta: float) -> None:
    torch.manual_seed(0)
    k = torch.randn(64, 64, dtype=torch.float64)
    if keys == "one":
        k = k[:1].expand(k.shape)
    if keys == "nearly_one":
        k = k[:1] + 0.05 * k
    if keys == "two_in_turn":
        k = k[torch.arange(64) % 2]
    k = F.normalize(k)
    lower = (k @ k.T).tril(-1).float()
    betas = torch.full((64,), beta)
    solved = torch.full((64, 64), float("nan"))
    solve_one[(1,)](lower, betas, solved)
    lower = lower.double()
    system = torch.eye(64, dtype=torch.float64) + lower * betas
    exact = torch.linalg.solve_triangular(system, lower, upper=False, unitriangular=True)
    assert relative_error(solved, exact) <= 2e-5
    assert exact.abs().max() <= 1 + 1e-6
