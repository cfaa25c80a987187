"""Tables and verdicts of `python -m benchmarks.recall`, from its trainings.

Every model stands with its best learning rate (by seed 0), and the mean over the seeds it was
trained with at that rate. A file may hold less than was asked for: what is missing is a dash, and
a published order of models that are not there has no verdict.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from benchmarks.recall_models import FAMILIES, SIZES
from benchmarks.recall_work import best_rates

Kind = tuple[int, int]  # tokens of a row, pairs in it
RECALLS = 0.99  # an accuracy from here on is counted as answering everything
_MARGIN = 0.01  # of a difference; test rows of 4 pairs have about 500 questions


@dataclass(frozen=True)
class Recalled:
    """What one model answers, at its best rate."""

    rate: float
    seeds: int
    state_bytes: int
    steps: list[int]  # per seed
    accuracies: dict[Kind, list[float]]  # per seed

    def mean(self, *kinds: Kind) -> float:
        return statistics.fmean(a for kind in kinds for a in self.accuracies[kind])

    def cell(self, kind: Kind) -> str:
        """The mean, and with several seeds the standard deviation over them."""
        found = self.accuracies[kind]
        mean = f"{statistics.fmean(found):.3f}"
        return mean if len(found) == 1 else f"{mean} ±{statistics.stdev(found):.2g}"


def recalled(results: dict) -> dict[str, Recalled]:
    """{model: what it answers}, in the order of `FAMILIES`, then of `SIZES`."""
    best = best_rates(results["trainings"])
    found: dict[str, list[dict]] = {}
    for training in results["trainings"]:
        if training["rate"] == best.get(training["model"]):
            found.setdefault(training["model"], []).append(training)
    order = [name for names in FAMILIES.values() for name in names]
    order += [name for sizes in SIZES.values() for name in sizes.values() if name not in order]
    return {name: _recalled(found[name]) for name in order if name in found}


def _recalled(trainings: list[dict]) -> Recalled:
    accuracies: dict[Kind, list[float]] = {}
    for training in trainings:
        for score in training["scores"]:
            kind = score["length"], score["pairs"]
            accuracies.setdefault(kind, []).append(score["accuracy"])
    return Recalled(
        trainings[0]["rate"],
        len(trainings),
        trainings[0]["state_bytes"],
        [training["steps"] for training in trainings],
        accuracies,
    )


def kinds(results: dict) -> tuple[list[Kind], list[Kind]]:
    """(those of training, twice as long ones)."""
    settings = results["settings"]
    length, pairs = settings["length"], sorted(settings["pairs"])
    longer = [(2 * length, number) for number in (pairs[-1], 2 * pairs[-1])]
    return [(length, number) for number in pairs], longer


def most_pairs(results: dict) -> list[Kind]:
    """The two hardest kinds of training, where sizes of states differ."""
    return kinds(results)[0][-2:]


def verdicts(results: dict) -> Iterator[str]:
    """One sentence each on a published order, whatever came out."""
    found, trained = recalled(results), kinds(results)[0]
    accuracy = {name: model.mean(*trained) for name, model in found.items()}
    if "softmax" in found:
        lowest = min(found["softmax"].mean(kind) for kind in trained)
        yield (
            f"{_as(lowest >= RECALLS)}: softmax attention answers everything: accuracy "
            f"{lowest:.3f} or more with {_numbers(trained)} pairs"
        )
    for less, more in (
        ("window16", "window64"),
        ("window64", "softmax"),
        ("linear", "gla"),
        ("linear", "gla-64"),  # states of one size
        ("linear", "deltanet"),
        ("linear", "gated_deltanet"),
    ):
        if less in found and more in found:
            verdict = _order([accuracy[less], accuracy[more]])
            yield f"{verdict}: {less} recalls less than {more}: {_compared(accuracy, less, more)}"
    for hybrid in FAMILIES["hybrid"]:
        block, alone = hybrid.split()
        if block in ("linear", "gla"):
            block, alone = alone, block
        if hybrid in found and alone in found:
            restored = accuracy[hybrid] >= RECALLS
            verdict = _order([accuracy[alone], accuracy[hybrid]])
            if verdict == _as(True):
                verdict = _as(restored)
            place = "first" if hybrid.startswith(block) else "last"
            yield (
                f"{verdict}: one {block} block, {place}, restores the recall of {alone}: "
                f"{_compared(accuracy, alone, hybrid)}"
            )
    for mixer, sizes in SIZES.items():
        there = [name for name in sizes.values() if name in found]
        if len(there) > 1:
            values = [found[name].mean(*most_pairs(results)) for name in there]
            states = [found[name].state_bytes for name in there]
            steps = ", ".join(f"{a:.3f} with {s:,} B" for a, s in zip(values, states, strict=True))
            yield (
                f"{_order(values)}: recall of {mixer} grows with its state, "
                f"{_numbers(most_pairs(results))} pairs: {steps}"
            )


def _as(holds: bool) -> str:
    return "as published" if holds else "NOT as published"


def _order(accuracies: list[float]) -> str:
    """Whether they grow, but for the margin at each step, from first to last by more than it."""
    if min(accuracies) >= RECALLS:
        return "cannot tell, all answer everything"
    steps = pairwise(accuracies)
    grows = all(after > before - _MARGIN for before, after in steps)
    return _as(grows and accuracies[-1] > accuracies[0] + _MARGIN)


def _compared(accuracy: dict[str, float], *names: str) -> str:
    return ", ".join(f"{name} {accuracy[name]:.3f}" for name in names)


def _numbers(some: list[Kind]) -> str:
    *first, last = (str(pairs) for _, pairs in some)
    return f"{', '.join(first)} and {last}" if first else last


def tables(results: dict) -> Iterator[Table]:
    found, (trained, longer) = recalled(results), kinds(results)
    names = [f"{pairs} pairs" for _, pairs in trained]
    names += [f"{pairs} pairs, {length} tokens" for length, pairs in longer]
    table = Table(
        "family",
        "model",
        *names,
        "state, bytes",
        "rate",
        "steps",
        title=f"accuracy; {rows(results)}",
    )
    for family, models in FAMILIES.items():
        for name in models:
            if name in found:
                model = found[name]
                cells = [model.cell(kind) for kind in (*trained, *longer)]
                steps = f"{statistics.fmean(model.steps):.0f}"
                table.add_row(
                    family, name, *cells, f"{model.state_bytes:,}", f"{model.rate:g}", steps
                )
    if table.row_count:
        yield table
    hardest = most_pairs(results)
    names = [f"{pairs} pairs" for _, pairs in hardest]
    table = Table(
        "mixer", "key width", "state, bytes", *names, "rate",
        title=f"accuracy by size of the state; {rows(results)}",
    )  # fmt: skip
    for mixer, sizes in SIZES.items():
        for width, name in sizes.items():
            if name in found:
                model = found[name]
                cells = [model.cell(kind) for kind in hardest]
                table.add_row(
                    mixer, str(width), f"{model.state_bytes:,}", *cells, f"{model.rate:g}"
                )
    if table.row_count:
        yield table


def rows(results: dict) -> str:
    """What models were trained on."""
    settings = results["settings"]
    return (
        f"trained on rows of {settings['length']} tokens with {_numbers(kinds(results)[0])} pairs, "
        f"at most {settings['steps']} steps of {settings['batch']} rows"
    )


def made(results: dict) -> str:
    """How the numbers came about."""
    found, vocab_size = recalled(results), results["settings"]["vocab_size"]
    numbers = sorted({model.seeds for model in found.values()})
    seeds = " to ".join(dict.fromkeys(str(n) for n in (numbers[0], numbers[-1])))
    rates = " ".join(f"{rate:g}" for rate in sorted({t["rate"] for t in results["trainings"]}))
    spent = sum(training["seconds"] for training in results["trainings"])
    return (
        f"means of {seeds} seed{'s' if numbers[-1] > 1 else ''} ± standard deviation, at the best "
        f"of the rates {rates} (by seed 0); vocabulary {vocab_size}, a guess among the values is "
        f"right with {1 / (vocab_size - vocab_size // 2):.3f}; {len(results['trainings'])} "
        f"trainings, {spent / 60:.0f} minutes of one core; bytes of both blocks per row while "
        "decoding, at the end of the longest rows"
    )


def show(results: dict, console: Console) -> None:
    """Everything but the picture."""
    for table in tables(results):
        console.print(table)
    for sentence in (made(results), describe(results["machine"]), *verdicts(results)):
        console.print(sentence, markup=False, highlight=False)
