"""Progress in the terminal: a bar over optimizer steps, or plain lines where there is no terminal.

A log file of a batch job gets one line every few per cent instead of a bar that redraws itself.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from model.training.stages import Stage, stage_at


class Progress(Callback):
    """Shows step, loss, tokens/s and the time left, from the resumed step on; rank 0 only.

    Args:
        stages: of the run; where there are several, a line says when one begins.
        line_percent: share of the run, in per cent, between two plain lines.
        stream: where to; None: standard error. A bar is drawn when it is a terminal.
    """

    def __init__(
        self,
        stages: Sequence[Stage] = (),
        line_percent: float = 5,
        stream: TextIO | None = None,
    ) -> None:
        self.stages = stages
        self.line_percent = line_percent
        self.stream = stream
        self._bar: tqdm | None = None
        self._validation_bar: tqdm | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._out = self.stream or sys.stderr
        self._draws = self._out.isatty()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_step = trainer.global_step
        self._started = self._refreshed = time.perf_counter()
        if not trainer.is_global_zero:
            return
        if self._draws:
            self._bar = tqdm(
                total=trainer.max_steps,
                initial=trainer.global_step,
                desc="train",
                unit="step",
                file=self._out,
                dynamic_ncols=True,
            )
        else:
            self._line(f"train: from step {trainer.global_step} to {trainer.max_steps}")

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        step = trainer.global_step
        if len(self.stages) < 2 or not trainer.is_global_zero:
            return
        number = stage_at(self.stages, step)
        stage = self.stages[number]
        if step in (stage.first_step, self._first_step):
            base = "" if stage.rope_base is None else f", rope base {stage.rope_base:,.0f}"
            self._line(
                f"train: stage {number} from step {stage.first_step} to "
                f"{stage.first_step + stage.steps}: rows of {stage.seq_len:,} tokens, "
                f"{stage.batch_tokens:,} tokens per step{base}"
            )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not trainer.is_global_zero:
            return
        step, total = trainer.global_step, trainer.max_steps
        metrics = pl_module.last_metrics
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            # Reading the loss waits for the device, so not at every step.
            now = time.perf_counter()
            if now - self._refreshed > 0.5 or step == total:
                self._refreshed = now
                self._bar.set_postfix_str(_numbers(metrics))
        elif _reaches_a_line(step, total, self.line_percent):
            seconds = time.perf_counter() - self._started
            left = seconds / (step - self._first_step) * (total - step)
            self._line(
                f"train: step {step}/{total} ({100 * step // total} %), {_numbers(metrics)}, "
                f"{duration(left)} left"
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._draws and trainer.is_global_zero and not trainer.sanity_checking:
            self._validation_bar = tqdm(
                total=_number_or_none(sum(trainer.num_val_batches)),
                desc="validate",
                unit="batch",
                file=self._out,
                dynamic_ncols=True,
                leave=False,
            )

    def on_validation_batch_end(self, *_: Any) -> None:
        if self._validation_bar is not None:
            self._validation_bar.update()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._validation_bar is not None:
            self._validation_bar.close()
            self._validation_bar = None
        value = trainer.callback_metrics.get("val_bits_per_byte")
        if trainer.is_global_zero and not trainer.sanity_checking and value is not None:
            self._line(f"validate: step {trainer.global_step}, {float(value):.4f} bits/byte")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def _close(self) -> None:
        for bar in (self._validation_bar, self._bar):
            if bar is not None:
                bar.close()
        self._bar = self._validation_bar = None

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._out)
        else:
            print(text, file=self._out, flush=True)


def duration(seconds: float) -> str:
    """Seconds as 42s, 3m05s or 2h07m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _numbers(metrics: dict[str, Any]) -> str:
    return f"loss {float(metrics['loss']):.4f}, {float(metrics['tokens_per_second']):,.0f} tokens/s"


def _reaches_a_line(step: int, total: int, percent: float) -> bool:
    """Whether the share `step / total` enters the next multiple of `percent`; true at the end."""
    line = 100 / percent
    return step == total or int(step / total * line) > int((step - 1) / total * line)


def _number_or_none(value: float) -> int | None:
    return None if value == float("inf") else int(value)
