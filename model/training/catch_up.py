"""The validations that Lightning leaves out: one that a stop or a crash prevented, and the last.

Checkpoints are saved before the step's validation, so that a long validation risks nothing. When
Lightning continues from there it takes that validation for done. And it validates at multiples of
an interval only, not after the last step.
"""

from pathlib import Path

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer

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
        if _agreed(trainer, due and not _is_validated(self.path, step)):
            loop = trainer.fit_loop.epoch_loop.val_loop
            loop.restarting = False
            trainer.validating = True
            loop.run()
            trainer.training = True


def validate_last_step(
    trainer: Trainer, module: LightningModule, data: LightningDataModule, path: Path
) -> None:
    """Validates after `trainer.fit`, unless the last step has its row.

    So a finished run has a validation of its end and a best checkpoint, however short it is. A call
    of its own, because `trainer.fit` calls no hook when it finds no step left to train.

    Args:
        path: the run's metrics.jsonl.
    """
    if _agreed(trainer, not _is_validated(path, trainer.global_step)):
        trainer.validate(module, datamodule=data, verbose=False)


def _is_validated(path: Path, step: int) -> bool:
    return any(row["step"] == step and is_validation(row) for row in read(path))


def _agreed(trainer: Trainer, answer: bool) -> bool:
    """Rank 0's answer on all ranks: only it has surely seen its own file."""
    return trainer.strategy.broadcast(answer)
