"""One training of `python -m benchmarks.recall`: a small model on rows of multi-query recall.

AdamW with weight decay on matrices and the embedding; the rate rises over the first tenth of the
steps and falls to a fiftieth along a cosine; gradients are clipped at norm 1. Every batch has
equally many rows of each number of pairs, all new. The loss is the cross-entropy of the answers,
its mean over the questions of a row and then over rows: each number of pairs counts the same, as
with the source's batches of one kind. The head is computed for questions alone. A training ends
early once it has answered 99.9 % of the questions of 25 steps.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.recall_models import build
from data.mqar import IGNORED, Recall, rows
from model.network import LanguageModel
from model.training.optimizers import split_parameters

_WEIGHT_DECAY, _BETAS, _CLIP = 0.1, (0.9, 0.98), 1.0
_WARMUP, _LOWEST_RATE = 0.1, 0.02  # shares of the steps, and of the rate
_PERFECT, _PERFECT_STEPS = 0.999, 25
_TEST = 2**32  # added to a seed: rows that no training has seen, for any seed of those allowed


@dataclass(frozen=True)
class Setup:
    """What all trainings share.

    vocab_size: token ids.  length: tokens of a row in training.  pairs: how many pairs such rows
    have, as many rows of each.  batch: rows per step.  steps: at most.  test_rows: of each kind.

    Raises:
        ValueError: such rows cannot be made.
    """

    vocab_size: int
    length: int
    pairs: Sequence[int]
    batch: int
    steps: int
    test_rows: int

    def __post_init__(self) -> None:
        if self.batch % len(self.pairs):
            raise ValueError(
                f"batch={self.batch} rows cannot be shared equally by {len(self.pairs)} numbers of "
                f"pairs; give a multiple of {len(self.pairs)}"
            )
        assert self.tests  # makes every kind of rows

    @cached_property
    def trained(self) -> tuple[Recall, ...]:
        return tuple(Recall(self.length, pairs, self.vocab_size) for pairs in self.pairs)

    @cached_property
    def tests(self) -> tuple[Recall, ...]:
        """The kinds of rows that models are trained on, and twice as long ones."""
        most, length = max(self.pairs), 2 * self.length
        longer = (Recall(length, pairs, self.vocab_size) for pairs in (most, 2 * most))
        return (*self.trained, *longer)


def train(setup: Setup, model: str, rate: float, seed: int) -> dict[str, Any]:
    """Trains a model of `recall_models` and tests it: a `recall_results.Training`."""
    start = time.perf_counter()
    network = build(model, setup.vocab_size, seed)
    steps = _train(network, setup, rate, seed)
    return {
        "model": model,
        "rate": rate,
        "seed": seed,
        "parameters": network.num_parameters(),
        # That of the longest rows: it has stopped growing, but for softmax attention.
        "state_bytes": sum(b.mixer.state_bytes(2 * setup.length) for b in network.blocks),
        "steps": steps,
        "seconds": round(time.perf_counter() - start, 1),
        "scores": [
            {
                "length": task.length,
                "pairs": task.pairs,
                "accuracy": accuracy(network, task, setup.test_rows, setup.batch),
            }
            for task in setup.tests
        ],
    }


def _train(network: LanguageModel, setup: Setup, rate: float, seed: int) -> int:
    """Returns the number of steps."""
    hidden, tables, others = split_parameters(network)
    groups = [
        {"params": hidden + tables, "weight_decay": _WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=_BETAS, fused=True)
    share = setup.batch // len(setup.pairs)
    right: list[float] = []
    for step in range(setup.steps):
        index = np.arange(step * share, (step + 1) * share)
        parts = [rows(task, seed, index) for task in setup.trained]
        tokens, labels = (
            torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)
        )
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_factor(step, setup.steps)
        network.redraw(step)
        logits, answers = answered(network, tokens, labels)
        loss = (F.cross_entropy(logits, answers, reduction="none") * row_shares(labels)).sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), _CLIP)
        if not torch.isfinite(norm):
            break  # diverged: what it answers now is its score
        optimizer.step()
        right.append((logits.detach().argmax(-1) == answers).float().mean().item())
        last = right[-_PERFECT_STEPS:]
        if len(last) == _PERFECT_STEPS and sum(last) >= _PERFECT * _PERFECT_STEPS:
            break
    return step + 1


def rate_factor(step: int, steps: int) -> float:
    """Share of the highest rate at a step from 0 to steps - 1."""
    warmup = _WARMUP * steps
    if step + 1 < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step + 1 - warmup) / (steps - warmup))
    return _LOWEST_RATE + (1 - _LOWEST_RATE) * (1 + math.cos(math.pi * progress)) / 2


def row_shares(labels: Tensor) -> Tensor:
    """Weights [N] of the questions in rows [B, T]: all rows count the same, and sum up to 1."""
    asked = labels != IGNORED
    return (1 / asked.sum(dim=1, keepdim=True)).expand(asked.shape)[asked] / len(labels)


def answered(network: LanguageModel, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [N, vocab] and answers [N] of the questions in rows [B, T]."""
    asked = labels != IGNORED
    return network.head(network.hidden(tokens)[asked]), labels[asked]


@torch.no_grad()
def accuracy(network: LanguageModel, task: Recall, count: int, batch: int) -> float:
    """Share of the questions answered right in `count` rows, the same for every model."""
    network.eval()
    right = 0
    for start in range(0, count, batch):
        index = np.arange(start, min(start + batch, count))
        tokens, labels = map(torch.from_numpy, rows(task, _TEST, index))
        logits, answers = answered(network, tokens, labels)
        right += int((logits.argmax(-1) == answers).sum())
    network.train()
    return right / (count * task.pairs)
