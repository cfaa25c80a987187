"""The stages of a run: row length, batch, mixture and rotary base as functions of the tokens read.

`trainer.stages` is one list. A stage lasts from the end of the one before it until its
`until_tokens`, the last one until the end of the run. What a stage leaves out is the run's own
setting. Which stage an optimizer step belongs to depends on its number alone, so a run continues
exactly at any step, also across the border of two stages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model.training.config import StageSettings, TrainerSettings


@dataclass(frozen=True)
class Stage:
    """Optimizer steps `first_step` to `first_step + steps - 1`, counted from 0."""

    first_step: int
    steps: int
    first_tokens: int
    """Tokens consumed before it."""
    seq_len: int
    batch_tokens: int
    micro_batch_rows: int | None
    weights: Mapping[str, float] | None
    """Of the sources; None: those of the run."""
    rope_base: float | None
    """Of softmax attention to the whole document; None: as the mixers say."""

    @property
    def rows(self) -> int:
        """Rows per optimizer step, over all devices."""
        return self.batch_tokens // self.seq_len


def stages_of(trainer: TrainerSettings, seq_len: int, tokens: int | None = None) -> list[Stage]:
    """The stages of a run; one where `trainer.stages` is null.

    Args:
        seq_len: tokens of a row where a stage does not say.
        tokens: length of the run; None: `trainer.tokens`.

    Raises:
        ValueError: what does not fit together, what is allowed, what to type.
    """
    total = trainer.tokens if tokens is None else tokens
    if trainer.stages is None:
        _check_batch("trainer.batch_tokens", trainer.batch_tokens, "data.seq_len", seq_len)
        whole = StageSettings()
        return [_stage(whole, trainer, seq_len, 0, 0, -(-total // trainer.batch_tokens))]
    if trainer.minutes is not None:
        raise ValueError(
            f"trainer.minutes={trainer.minutes:g} with trainer.stages: stages say how many tokens "
            "a run has; type trainer.minutes=null"
        )
    if not trainer.stages:
        raise ValueError("trainer.stages is empty; type trainer.stages=null, or give one stage")
    stages: list[Stage] = []
    step = done = 0
    for number, settings in enumerate(trainer.stages):
        name = f"trainer.stages.{number}"
        batch, length = settings.batch_tokens or trainer.batch_tokens, settings.seq_len or seq_len
        _check_batch(f"batch_tokens of {name}", batch, "its seq_len", length)
        is_last = number == len(trainer.stages) - 1
        steps, rest = divmod(_end(settings, name, is_last, total, done) - done, batch)
        if rest and not is_last:
            lower = done + steps * batch
            raise ValueError(
                f"{name}.until_tokens={settings.until_tokens}: the stage has "
                f"{steps * batch + rest:,} tokens, no whole number of steps of batch_tokens="
                f"{batch:,}; use " + " or ".join(str(n) for n in (lower, lower + batch) if n > done)
            )
        steps += bool(rest)
        stages.append(_stage(settings, trainer, seq_len, step, done, steps))
        step, done = step + steps, done + steps * batch
    longest = max(stage.seq_len for stage in stages)
    for number, stage in enumerate(stages):
        if longest % stage.seq_len:
            raise ValueError(
                f"trainer.stages.{number}: rows of {stage.seq_len:,} tokens do not divide the "
                f"longest rows of the run, {longest:,} tokens; use a divisor, such as "
                f"{_divisor_near(stage.seq_len, longest)}"
            )
    return stages


def stage_at(stages: Sequence[Stage], step: int) -> int:
    """Number of the stage of the step after `step` optimizer steps; after the end the last one."""
    return max(i for i, stage in enumerate(stages) if stage.first_step <= step)


def tokens_after(stages: Sequence[Stage], steps: int) -> int:
    """Tokens consumed by the first `steps` optimizer steps."""
    stage = stages[stage_at(stages, max(0, steps - 1))]
    return stage.first_tokens + (steps - stage.first_step) * stage.batch_tokens


def total_steps(stages: Sequence[Stage]) -> int:
    """Optimizer steps of the run."""
    return stages[-1].first_step + stages[-1].steps


def _stage(
    settings: StageSettings,
    trainer: TrainerSettings,
    seq_len: int,
    step: int,
    done: int,
    steps: int,
) -> Stage:
    length = settings.seq_len or seq_len
    rows = settings.micro_batch_rows
    if rows is None and trainer.micro_batch_rows is not None:
        rows = max(1, trainer.micro_batch_rows * seq_len // length)
    batch = settings.batch_tokens or trainer.batch_tokens
    return Stage(step, steps, done, length, batch, rows, settings.weights, settings.rope_base)


def _end(settings: StageSettings, name: str, is_last: bool, total: int, done: int) -> int:
    until = settings.until_tokens
    if is_last:
        if until not in (None, total):
            raise ValueError(
                f"{name}.until_tokens={until}: the last stage lasts to the end of the run, "
                f"trainer.tokens={total}; leave it out, or type trainer.tokens={until}"
            )
        until = total
    if until is None:
        raise ValueError(f"{name} has no until_tokens; only the last stage may leave it out")
    if until <= done or until > total:
        raise ValueError(
            f"{name}: it would last from {done:,} to {until:,} tokens; until_tokens increase from "
            f"stage to stage, up to trainer.tokens={total:,}"
        )
    return until


def _check_batch(batch_name: str, batch: int, length_name: str, seq_len: int) -> None:
    rows, rest = divmod(batch, seq_len)
    if rest or not rows:
        lower, upper = max(rows, 1) * seq_len, (rows + 1) * seq_len
        raise ValueError(
            f"{batch_name}={batch} is not a whole number of rows of {length_name}={seq_len}; use "
            f"{' or '.join(str(n) for n in sorted({lower, upper}))}"
        )


def _divisor_near(length: int, longest: int) -> int:
    count = -(-longest // length)
    while longest % count:
        count += 1
    return longest // count
