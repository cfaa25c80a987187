"""One of two ranks of test_two_rank_rows.py: trains on a prepared folder, prints what it saw.

python two_ranks_rows.py FOLDER STEPS BATCH_ROWS
"""

import json
import sys
from pathlib import Path

import lightning as L
import torch
import yaml
from lightning.pytorch.plugins.environments import LightningEnvironment

from conf.cli import CONF
from data.config import DataConfig
from data.index import read_index
from data.module import PackedDataModule
from data.rows import RowStage
from data.sets import Prepared


class Recorder(L.LightningModule):
    """Meets the other rank at every step and validation batch, and remembers the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.trained: list[int] = []
        self.validated: list[int] = []

    def training_step(self, batch, _):
        self.trained += batch["samples"].tolist()
        return self.weight.sum() * batch["tokens"].float().mean()

    def validation_step(self, batch, _):
        self.validated += batch["samples"].tolist()
        self.log("value", batch["tokens"].float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(folder: Path, steps: int, rows: int) -> None:
    values = yaml.safe_load((Path(CONF) / "data/stdlib.yaml").read_text())
    data = PackedDataModule(
        {"": Prepared(folder, read_index(folder))},
        DataConfig(**(values | {"seq_len": 4})),
        {"": 1.0},
        [RowStage(None, rows, 4)],
        val_rows=1,
    )
    module = Recorder()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        plugins=[LightningEnvironment()],
        max_steps=steps,
        max_epochs=-1,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    print(json.dumps({"steps": trainer.global_step, "trained": module.trained,
                      "validated": module.validated}))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
