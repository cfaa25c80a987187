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


def check_schedule(settings: WSDSettings | CosineSettings, total: int) -> None:
    """Raises ValueError if the phases do not fit into `total` tokens."""
    warmup = tokens_of(settings.warmup, total)
    decay = tokens_of(settings.decay, total) if settings.kind == "wsd" else 0
    if warmup + decay > total:
        raise ValueError(
            f"schedule.warmup ({warmup:,} tokens) and schedule.decay ({decay:,}) are longer than "
            f"the run's {total:,} tokens: shorten them or raise trainer.tokens"
        )
