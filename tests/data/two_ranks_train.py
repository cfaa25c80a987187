"""One of two ranks of test_two_rank_training.py: train.py, which prints what it saw as well.

python two_ranks_train.py OVERRIDES
"""

import json

import model.training.module
import train


class Recorded(model.training.module.TrainingModule):
    """Remembers the samples and losses."""

    def on_fit_start(self):
        self.trained: list[int] = []
        self.validated: list[int] = []
        self.losses: list[float] = []

    def training_step(self, batch, batch_idx):
        self.trained += batch["samples"].tolist()
        super().training_step(batch, batch_idx)
        self.losses.append(float(self.last_metrics["loss"]))

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.validated += batch["samples"].tolist()
        super().validation_step(batch, batch_idx, dataloader_idx)

    def on_fit_end(self):
        print(json.dumps({"steps": self.trainer.global_step, "trained": self.trained,
                          "validated": self.validated, "losses": self.losses}))  # fmt: skip


if __name__ == "__main__":
    model.training.module.TrainingModule = Recorded
    train.main()
