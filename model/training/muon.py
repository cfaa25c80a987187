"""Muon: momentum whose direction is the nearest orthogonal matrix (Jordan et al., 2024).

The same update as `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` and decoupled weight
decay, with two differences that the tests hold against it: matrices of one shape go through the
Newton-Schulz iteration as one batched product, and the iteration runs in the precision of the
trainer, since torch's fixed bfloat16 is a hundred times slower on CPUs without bfloat16 units.
"""

import torch
from torch import Tensor

# Quintic coefficients with the steepest slope at zero, from Jordan's description of Muon:
# https://kellerjordan.github.io/posts/muon/
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """Trains matrices.

    Args:
        params: 2-D parameters, or groups of them.
        lr: learning rate; an update has the size 0.2 lr sqrt(max(rows, columns)) of a rotation.
        momentum: decay of the running mean of gradients.
        ns_steps: Newton-Schulz iterations.
        weight_decay: decoupled, times lr.
        dtype: of the Newton-Schulz iteration.
    """

    def __init__(
        self,
        params,
        lr: float,
        momentum: float,
        ns_steps: int,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.dtype = dtype
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "ns_steps": ns_steps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"Muon takes matrices, not shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure=None) -> None:
        assert closure is None, "the closure is run by the optimizer that holds this one"
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict) -> None:
        momentum = group["momentum"]
        directions = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
            directions.append(parameter.grad.lerp(buffer, momentum))  # Nesterov
        orthogonal = orthogonalize(torch.stack(directions).to(self.dtype), group["ns_steps"])
        # Updates of the size that AdamW's typically have (Liu et al., 2025, Muon is scalable).
        step_size = group["lr"] * 0.2 * max(parameters[0].shape) ** 0.5
        for parameter, update in zip(parameters, orthogonal, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update.to(parameter.dtype), alpha=-step_size)


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Moves the singular values of every matrix [N, rows, columns] close to 1.

    A quintic Newton-Schulz iteration; singular values end between about 0.7 and 1.2.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        update = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
        x = torch.baddbmm(x, update, x, beta=_A)
    return x.mT if tall else x
