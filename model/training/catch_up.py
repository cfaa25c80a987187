"""Makes up for a validation that a stop or a crash prevented.

Checkpoints are saved before the step's validation, so that a long validation risks nothing. When
Lightning continues from there it takes that validation for done.
"""

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from model.training.metrics_file import is_validation, read


class CatchUpValidation(Callback):
    """Validates at the start of a continued run when the row of its step is missing.

    Place it last, so that the others have started.

    Args:
        path: the run's metrics.jsonl.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step = trainer.global_step
        due = trainer.enable_validation and step > 0 and step % trainer.val_check_batch == 0
        missing = due and not any(
            row["step"] == step and is_validation(row) for row in read(self.path)
        )
        # Ranks must agree, and only rank 0 has surely seen its own file.
        if trainer.strategy.broadcast(missing):
            loop = trainer.fit_loop.epoch_loop.val_loop
            loop.restarting = False
            trainer.validating = True
            loop.run()
            trainer.training = True
