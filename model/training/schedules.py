"""Learning-rate schedules: pure functions of the tokens consumed.

Nothing here counts calls or batches, so the rate of an optimizer step is the same for any
micro-batch, number of devices or restart point.
"""

import math

from model.training.config import CosineSettings, WSDSettings, tokens_of


def learning_rate_factor(settings: WSDSettings | CosineSettings, tokens: int, total: int) -> float:
    """The share of the highest learning rate for the step that ends at `tokens` tokens.

    Args:
        tokens: tokens consumed by the run, this step included.
        total: tokens of the whole run; after them the rate stays at its last value.
    """
    warmup = tokens_of(settings.warmup, total)
    if tokens < warmup:
        return tokens / warmup
    if settings.kind == "cosine":
        progress = min(1.0, (tokens - warmup) / max(1, total - warmup))
        return settings.final + (1 - settings.final) * (1 + math.cos(math.pi * progress)) / 2
    decay = tokens_of(settings.decay, total)
    progress = min(1.0, max(0.0, (tokens - (total - decay)) / max(1, decay)))
    fall = math.sqrt(progress) if settings.shape == "sqrt" else progress
    return 1 - (1 - settings.final) * fall


def check_schedule(
    settings: WSDSettings | CosineSettings, total: int, minutes: float | None = None
) -> None:
    """Checks that the phases fit into the run.

    Args:
        total: tokens of the whole run.
        minutes: the limit that made the run shorter than `trainer.tokens`, None where none did.

    Raises:
        ValueError: they are longer.
    """
    lengths = {"schedule.warmup": tokens_of(settings.warmup, total)}
    if settings.kind == "wsd":
        lengths["schedule.decay"] = tokens_of(settings.decay, total)
    if sum(lengths.values()) <= total:
        return
    phases = " and ".join(f"{key} ({tokens:,} tokens)" for key, tokens in lengths.items())
    if minutes is None:
        run, longer = f"the run's {total:,} tokens", "raise trainer.tokens"
    else:
        run = f"the {total:,} tokens that fit into trainer.minutes={minutes:g} here"
        longer = "raise trainer.minutes (null: no limit)"
    raise ValueError(
        f"{phases} {'is' if len(lengths) == 1 else 'are'} longer than {run}: shorten them, for "
        f"example to a share of the run such as schedule.warmup=2%, or {longer}"
    )
