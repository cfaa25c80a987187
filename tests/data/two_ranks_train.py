"""One of two ranks of test_two_rank_training.py: trains as train.py does, prints what it saw.

python two_ranks_train.py OVERRIDES
"""

import json
import sys

import lightning as L
from lightning.pytorch.plugins.environments import LightningEnvironment

import train
from data.module import PackedDataModule
from data.rows import row_stages
from data.sets import prepared_sets, validation_sets, weights_of
from model.training.module import TrainingModule, ValidationSet
from model.training.stages import stages_of, total_steps
from tests.composing import composed


class Recorded(TrainingModule):
    """Remembers the samples and losses."""

    def prepare(self) -> "Recorded":
        self.trained: list[int] = []
        self.validated: list[int] = []
        self.losses: list[float] = []
        return self

    def training_step(self, batch, batch_idx):
        self.trained += batch["samples"].tolist()
        super().training_step(batch, batch_idx)
        self.losses.append(float(self.last_metrics["loss"]))

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.validated += batch["samples"].tolist()
        super().validation_step(batch, batch_idx, dataloader_idx)


def main(overrides: list[str]) -> None:
    settings = train.check_settings(composed(*overrides))[0]
    options = settings.trainer
    sets = prepared_sets(settings.data, settings.tokenizer)
    stages = stages_of(options, settings.data.seq_len)
    weights = weights_of(settings.data, sets)
    rows = options.validation_rows
    data = PackedDataModule(sets, settings.data, weights, row_stages(stages), val_rows=rows)
    module = Recorded(
        train.build_model(settings, sets, begun=False),
        settings.optimizer,
        settings.schedule,
        options,
        stages,
        [ValidationSet(*one) for one in validation_sets(settings.data, sets)],
    ).prepare()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        plugins=[LightningEnvironment()],
        precision=options.precision,
        max_steps=total_steps(stages),
        max_epochs=-1,
        val_check_interval=options.validate_every,
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
                      "validated": module.validated, "losses": module.losses}))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
