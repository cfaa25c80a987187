"""Which parameter is trained by which optimizer, presented to Lightning as one optimizer."""

from typing import Any

import torch
from torch import nn

from model.network import LanguageModel
from model.training.config import AdamWSettings, MuonSettings
from model.training.muon import Muon


def build_optimizer(
    settings: MuonSettings | AdamWSettings, model: LanguageModel, precision: str
) -> "Optimizers":
    """Splits the parameters of `model` by role.

    Matrices of the blocks (the weights of linear layers): Muon, or AdamW with weight decay.
    Embeddings and head: AdamW with weight decay. Gains, biases, decays and convolution taps: AdamW
    without. A tied head is one entry. `precision` is the trainer's, `32-true` or `bf16-mixed`.
    """
    hidden, tables, others = split_parameters(model)
    if settings.kind == "adamw":
        groups = [
            {"params": hidden + tables, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return Optimizers([_adamw(groups, settings, settings.lr)])
    groups = [
        {"params": tables, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    muon = Muon(
        hidden,
        lr=settings.lr,
        momentum=settings.momentum,
        ns_steps=settings.ns_steps,
        weight_decay=settings.weight_decay,
        dtype=torch.bfloat16 if precision == "bf16-mixed" else torch.float32,
    )
    return Optimizers([muon, _adamw(groups, settings, settings.adamw_lr)])


def split_parameters(
    model: LanguageModel,
) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """(matrices of the blocks, embedding and head, everything else), each parameter once."""
    tables = {model.embedding.weight: None, model.head.weight: None}
    hidden = {
        module.weight: None
        for module in model.blocks.modules()
        if isinstance(module, nn.Linear) and module.weight not in tables
    }
    others = [p for p in model.parameters() if p not in tables and p not in hidden]
    return list(hidden), list(tables), others


class Optimizers(torch.optim.Optimizer):
    """Several optimizers that step together; learning rates are scaled by one schedule factor.

    Every group remembers its highest rate as `base_lr`. While `skip_next` is set, the next step
    changes nothing: it still counts as a step.
    """

    def __init__(self, members: list[torch.optim.Optimizer]) -> None:
        self.members = members
        self.defaults: dict[str, Any] = {}
        for group in self.param_groups:
            group["base_lr"] = group["lr"]
        self.skip_next = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        return {key: value for member in self.members for key, value in member.state.items()}

    def scale_lr(self, factor: float) -> None:
        """Sets every learning rate to `factor` times its highest value."""
        for group in self.param_groups:
            group["lr"] = group["base_lr"] * factor

    def step(self, closure=None) -> Any:
        loss = closure() if closure is not None else None
        if not self.skip_next:
            for member in self.members:
                member.step()
        self.skip_next = False
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for member in self.members:
            member.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"members": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for member, saved in zip(self.members, state["members"], strict=True):
            member.load_state_dict(saved)

    def __repr__(self) -> str:
        return f"Optimizers({self.members})"


def _adamw(groups: list[dict[str, Any]], settings: Any, lr: float) -> torch.optim.AdamW:
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(
        groups, lr=lr, betas=tuple(settings.betas), eps=settings.eps, fused=True
    )
