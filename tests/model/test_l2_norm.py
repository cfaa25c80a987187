"""Keys of the delta rule: no longer than 1 in any type, or its state would grow without bound."""

import pytest
import torch

from model.layers import l2_norm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_nothing_is_longer_than_1_and_little_is_lost(dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 64) * torch.logspace(-1, 4, 2000)[:, None]
    x = torch.cat((x, torch.eye(64), torch.full((1, 64), 3.0))).to(dtype)
    lengths = l2_norm(x).double().norm(dim=-1)
    assert lengths.max() <= 1 + 1e-7  # float32 itself
    assert lengths.min() >= 1 - 1.5 * torch.finfo(dtype).eps - 1e-5


def test_the_hardest_key_in_bfloat16_keeps_the_state_bounded() -> None:
    torch.manual_seed(0)
    keys = l2_norm(torch.randn(2000, 64).bfloat16()).double()
    key = keys[keys.norm(dim=-1).argmax()]
    state = torch.ones(64, dtype=torch.float64)
    for _ in range(4096):
        state = state - 2 * key * (key @ state)  # beta = 2 reflects
    assert state.norm() <= 8 + 1e-6
