"""One of two ranks, started by test_two_ranks.py: trains random features, prints what it saw.

python two_ranks_redraw.py FOLDER begin       # 26 steps, and 13 with a checkpoint
python two_ranks_redraw.py FOLDER continue    # from that checkpoint to 26 steps
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import lightning as L
import torch
from standin import make_trainer
from torch.utils.data import DataLoader, IterableDataset

from model.network import LanguageModel
from model.training.checkpoints import Checkpoints, latest
from model.training.module import TrainingModule, ValidationSet
from model.training.stages import stages_of
from tests.composing import composed, small_model

LENGTH = 16


def digest(x: torch.Tensor) -> str:
    return hashlib.sha256(x.detach().numpy().tobytes()).hexdigest()[:16]


def projections(model: LanguageModel) -> str:
    """Of all blocks."""
    return digest(torch.stack([block.mixer.feature_map.projection for block in model.blocks]))


def logits(model: LanguageModel) -> str:
    """Twice: evaluation draws nothing."""
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        first, second = model.eval()(tokens), model(tokens)
    model.train()
    assert torch.equal(first, second)
    return digest(first)


class Rows(IterableDataset):
    """The rows of a rank at a step are a function of both."""

    def __init__(self, step: int, rank: int) -> None:
        self.step, self.rank = step, rank

    def __iter__(self):
        while True:
            generator = torch.Generator().manual_seed(2 * self.step + self.rank)
            tokens = torch.randint(64, (2, LENGTH + 1), generator=generator)
            segments = torch.zeros(2, LENGTH, dtype=torch.int64)
            yield {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "segments": segments}
            self.step += 1


class Data(L.LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        rows = Rows(self.trainer.global_step, self.trainer.global_rank)
        return DataLoader(rows, batch_size=None)

    def val_dataloader(self) -> DataLoader:
        return DataLoader([next(iter(Rows(1000, self.trainer.global_rank)))], batch_size=None)


class Watch(L.Callback):
    def __init__(self) -> None:
        self.seen = {"drawn": {}, "losses": [], "validated_with": {}}

    def on_train_start(self, trainer, pl_module) -> None:
        self.seen["logits_at_start"] = logits(pl_module.model)

    def on_train_batch_end(self, trainer, pl_module, *_) -> None:
        self.seen["drawn"][trainer.global_step - 1] = projections(pl_module.model)
        self.seen["losses"].append(float(pl_module.last_metrics["loss"]))

    def on_validation_end(self, trainer, pl_module) -> None:
        self.seen["validated_with"][trainer.global_step] = projections(pl_module.model)


def train(seed: int, steps: int, folder: Path, start: Path | None) -> dict:
    # Other weights on every rank, of which all take those of rank 0, and the same features.
    torch.manual_seed(seed + int(os.environ["RANK"]))
    settings = composed(f"trainer.batch_tokens={4 * LENGTH}", "schedule.warmup=0")
    model = small_model("performer*2", "model.mixers.performer.redraw_every=10")
    at_start = projections(model)
    stages = stages_of(settings.trainer, LENGTH, 26 * 4 * LENGTH)
    validation = [ValidationSet("", 1.0, 3.0)]
    module = TrainingModule(
        model, settings.optimizer, settings.schedule, settings.trainer, stages, validation
    )
    watch = Watch()
    callbacks = [watch, Checkpoints(folder, 99, 9, 0, {})]
    trainer = make_trainer(callbacks, steps, strategy="ddp", devices=2, val_check_interval=20)
    trainer.fit(module, datamodule=Data(), ckpt_path=start)
    return {"at_start": at_start, "logits": logits(model)} | watch.seen


def main(folder: Path, part: str) -> None:
    half = folder / "half"
    if part == "begin":
        print(json.dumps(train(0, 26, folder / "whole", None)))
        print(json.dumps(train(0, 13, half, None)))
    else:
        print(json.dumps(train(100, 26, half, latest(half))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
