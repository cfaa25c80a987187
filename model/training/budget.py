"""How many tokens a run trains on when it also has a limit in minutes.

The schedule needs the length of a run before its first step, so the machine's speed is measured
first, on a copy of the model, and the number is kept in the run's folder: a continued run, on this
machine or another, has the length it started with.
"""

import copy
import json
import statistics
import time
from pathlib import Path

import torch

from model.network import LanguageModel
from model.training.config import OptimizerSettings, TrainerSettings
from model.training.device import autocast
from model.training.files import write_atomic
from model.training.loss import chunked_cross_entropy
from model.training.optimizers import build_optimizer

_HEADROOM = 0.95
"""Share of the minutes that is planned for: machines slow down, and validation takes its part."""


def fitting_tokens(trainer: TrainerSettings, tokens_per_second: float) -> int:
    """Tokens of a run: `trainer.tokens`, or the whole steps that fit into `trainer.minutes`."""
    if trainer.minutes is None:
        return trainer.tokens
    fitting = tokens_per_second * trainer.minutes * 60 * _HEADROOM
    if fitting >= trainer.tokens:
        return trainer.tokens
    whole_steps = max(1, int(fitting) // trainer.batch_tokens) * trainer.batch_tokens
    return min(trainer.tokens, whole_steps)


def planned_tokens(
    record: Path,
    model: LanguageModel,
    optimizer: OptimizerSettings,
    trainer: TrainerSettings,
    seq_len: int,
    device: torch.device,
) -> int:
    """Tokens of the run, from `record` or by measuring; says so when they are fewer than asked for.

    Args:
        record: the run's file that keeps the number; written once.
        seq_len: tokens per row.
    """
    if trainer.minutes is None:
        return trainer.tokens
    if not record.is_file():
        speed = training_speed(model, optimizer, trainer, seq_len, device)
        plan = {"tokens": fitting_tokens(trainer, speed), "tokens_per_second": round(speed, 1)}
        write_atomic(record, json.dumps(plan, indent=2) + "\n")
    plan = json.loads(record.read_text(encoding="utf-8"))
    if plan["tokens"] < trainer.tokens:
        print(
            f"note: at {plan['tokens_per_second']:,.0f} tokens/s, {plan['tokens']:,} of "
            f"trainer.tokens={trainer.tokens:,} fit into trainer.minutes={trainer.minutes:g}; "
            "for all of them start a new run with trainer.minutes=null"
        )
    return plan["tokens"]


def training_speed(
    model: LanguageModel,
    optimizer: OptimizerSettings,
    trainer: TrainerSettings,
    seq_len: int,
    device: torch.device,
    steps: int = 4,
) -> float:
    """Tokens per second of optimizer steps of a copy of `model` on random tokens; the median."""
    copied = copy.deepcopy(model).to(device)
    stepper = build_optimizer(optimizer, copied, trainer.precision)
    rows = trainer.micro_batch_rows or trainer.batch_tokens // seq_len
    tokens = torch.randint(model.vocab_size, (rows, seq_len), device=device)
    # Two documents per row: one would take shortcuts that few batches can.
    segments = (torch.arange(seq_len, device=device) >= seq_len // 2).long().expand_as(tokens)
    rates = []
    for step in range(1 + steps):  # the first warms up
        start = time.perf_counter()
        with autocast(trainer.precision, device):
            hidden = copied.hidden(tokens, segments).flatten(0, 1)
            loss, _ = chunked_cross_entropy(
                hidden, copied.head.weight, tokens.flatten(), trainer.loss_chunk
            )
        loss.backward()
        gradients = [p.grad for p in copied.parameters() if p.grad is not None]
        torch.nn.utils.get_total_norm(gradients)
        stepper.step()
        stepper.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if step:
            rates.append(tokens.numel() / (time.perf_counter() - start))
    return statistics.median(rates)
