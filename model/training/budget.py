"""How many tokens a run trains on when it also has a limit in minutes.

The schedule needs the length of a run before its first step, so the machine's speed is measured
first, on a copy of the model, and the number is kept in the run's folder: a continued run, on this
machine or another, has the length it started with.
"""

import copy
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from conf.records import read_record
from model.network import LanguageModel
from model.training.config import OptimizerSettings, TrainerSettings
from model.training.device import autocast
from model.training.files import write_atomic
from model.training.loss import chunked_cross_entropy
from model.training.optimizers import build_optimizer

_MEASURED_SHARE, _MOST_SECONDS = 0.03, 60.0
"""How long to measure, as a share of the minutes. A second says little: clocks rise and fall."""

_HEADROOM = 0.92
"""Share of the minutes that is planned for: machines slow down, and validation takes its part. Less
leaves more of them unused: two of five quickstarts were faster than measured, by up to 7 %."""

_LOST = "restore it, the run's length is in it; or start a new run: run.name=NAME"


@dataclass(frozen=True)
class Plan:
    """The length of a run."""

    tokens: int
    tokens_per_second: float | None
    """As measured; None where nothing limits the time."""

    def keep(self, record: Path) -> None:
        """Writes the run's file for the next starts, once; nothing where there is no limit."""
        if self.tokens_per_second is not None and not record.is_file():
            write_atomic(record, json.dumps(asdict(self), indent=2) + "\n")


def planned(
    record: Path,
    model: LanguageModel,
    optimizer: OptimizerSettings,
    trainer: TrainerSettings,
    seq_len: int,
    device: torch.device,
    begun: bool,
    world: int = 1,
) -> Plan:
    """The run's length, from `record` or by measuring; says so when it is less than asked for.

    Args:
        record: the run's file that keeps the plan; nothing is written here.
        seq_len: tokens per row.
        begun: the run has trained already, by its record.
        world: processes that train; one of them is measured.

    Raises:
        ValueError: `record` is damaged, or missing where the run has begun.
    """
    if trainer.minutes is None:
        return Plan(trainer.tokens, None)
    if begun or record.is_file():
        kept = read_record(record, ["tokens", "tokens_per_second"], _LOST)
        plan = Plan(kept["tokens"], kept["tokens_per_second"])
    else:
        seconds = min(trainer.minutes * 60 * _MEASURED_SHARE, _MOST_SECONDS)
        if seconds > 3:
            print(f"measuring the machine's speed for {seconds:.0f} s", flush=True)
        speed = world * training_speed(model, optimizer, trainer, seq_len, device, seconds, world)
        plan = Plan(fitting_tokens(trainer, speed), round(speed, 1))
    if plan.tokens < trainer.tokens:
        print(
            f"note: at {plan.tokens_per_second:,.0f} tokens/s, {plan.tokens:,} of "
            f"trainer.tokens={trainer.tokens:,} fit into trainer.minutes={trainer.minutes:g}; "
            "for all of them start a new run with trainer.minutes=null"
        )
    return plan


def kept_tokens(record: Path) -> int | None:
    """The length of a run that is limited in time; None where no limit was measured."""
    return read_record(record, ["tokens"], _LOST)["tokens"] if record.is_file() else None


def fitting_tokens(trainer: TrainerSettings, tokens_per_second: float) -> int:
    """Tokens of a run: `trainer.tokens`, or the whole steps that fit into `trainer.minutes`."""
    if trainer.minutes is None:
        return trainer.tokens
    fitting = tokens_per_second * trainer.minutes * 60 * _HEADROOM
    if fitting >= trainer.tokens:
        return trainer.tokens
    whole_steps = max(1, int(fitting) // trainer.batch_tokens) * trainer.batch_tokens
    return min(trainer.tokens, whole_steps)


def training_speed(
    model: LanguageModel,
    optimizer: OptimizerSettings,
    trainer: TrainerSettings,
    seq_len: int,
    device: torch.device,
    seconds: float,
    world: int = 1,
) -> float:
    """Tokens per second of optimizer steps of a copy of `model` on random tokens; the median.

    seconds: how long to measure, at least 3 steps, after a first one that warms up.
    world: processes that share a step; this one measures its own part.
    """
    copied = copy.deepcopy(model).to(device)
    if trainer.compile == "on":
        copied.compile_blocks()
    stepper = build_optimizer(optimizer, copied, trainer.precision)
    rows = trainer.micro_batch_rows or trainer.batch_tokens // seq_len // world
    tokens = torch.randint(model.vocab_size, (rows, seq_len), device=device)
    # Two documents per row: one would take shortcuts that few batches can.
    segments = (torch.arange(seq_len, device=device) >= seq_len // 2).long().repeat(rows, 1)

    def step() -> float:
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
        return time.perf_counter() - start

    step()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        times.append(step())
    return tokens.numel() / statistics.median(times)
