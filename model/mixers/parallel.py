"""Several mixers side by side in one block (`a+b` in the layer pattern).

Each branch has its own heads, projections and norms; the outputs are summed with learned scales,
as in Hymba (Dong et al., 2024) and Falcon-H1 (2025).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from model.sequence import SequenceInfo


class ParallelMixers(nn.Module):
    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.scale = nn.Parameter(torch.empty(len(self.branches)))

    def forward(
        self,
        x: Tensor,
        info: SequenceInfo,
        state: tuple | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, tuple[Any, ...] | None]:
        states = state or (None,) * len(self.branches)
        total, kept = 0, []
        for scale, branch, before in zip(self.scale, self.branches, states, strict=True):
            y, after = branch(x, info, before, keep_state)
            total = total + y * scale.to(y.dtype)
            kept.append(after)
        return total, tuple(kept) if keep_state else None

    def init_weights(self) -> None:
        # The mean of the branches: a block starts as loud as one with a single mixer.
        nn.init.constant_(self.scale, 1 / len(self.branches))

    def flops_per_token(self, length: int) -> float:
        return sum(branch.flops_per_token(length) for branch in self.branches)

    def state_bytes(self, length: int) -> int:
        return sum(branch.state_bytes(length) for branch in self.branches)

    def residual_outputs(self) -> list[nn.Linear]:
        return [output for branch in self.branches for output in branch.residual_outputs()]
