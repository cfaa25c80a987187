"""A small module of the shape that the callbacks expect: one item = one optimizer step."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

TOKENS_PER_STEP = 128

warnings.filterwarnings("ignore", message=".*does not have many workers.*")
warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")


def batch_of(step: int) -> torch.Tensor:
    """The batch of the step after `step` optimizer steps: a pure function of the number."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 + step))


class Standin(LightningModule):
    """Fits a linear map; `nan_at`: the step whose weights become NaN."""

    def __init__(self, width: int = 4, compiled: bool = False, nan_at: int | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 4))
        self.register_buffer("running_maximum", torch.tensor(float("-inf")))
        if compiled:
            self.network = torch.compile(self.network, backend="eager")
        self.nan_at = nan_at
        self.last_metrics: dict[str, Any] = {}
        self.seen: list[tuple[int, float]] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        optimizer = self.optimizers()
        step = self.global_step
        rate = 0.1 * min((step + 1) / 5, 1.0) * (1 - step / 40)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        if self.nan_at == step + 1:
            with torch.no_grad():
                next(self.network.parameters()).view(-1)[1] = float("nan")
        self.seen.append((step, float(batch[0, 0])))
        self.last_metrics = {
            "step": step + 1,
            "tokens": (step + 1) * TOKENS_PER_STEP,
            "loss": loss.detach(),
            "learning_rate": rate,
            "grad_norm": torch.tensor(0.5),
            "tokens_per_second": 1000.0,
        }

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return ((self.network(batch) - batch.flip(-1)) ** 2).mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log("val_nats_per_token", loss)
        self.log("val_bits_per_byte", loss / 0.7)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


class _Steps(IterableDataset):
    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Iterator[torch.Tensor]:
        step = self.first
        while True:
            yield batch_of(step)
            step += 1


class StandinData(LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(_Steps(self.trainer.global_step), batch_size=None)

    def val_dataloader(self) -> DataLoader:
        return DataLoader([batch_of(-1), batch_of(-2)], batch_size=None)


def make_trainer(callbacks: list[Callback], max_steps: int = 20, **given: Any) -> Trainer:
    """A quiet CPU trainer; without `val_check_interval` nothing is validated."""
    options: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "check_val_every_n_epoch": None,
        "val_check_interval": 10**6,
        "max_epochs": -1,
    }
    return Trainer(callbacks=callbacks, max_steps=max_steps, **(options | given))
