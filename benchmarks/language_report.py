"""Tables and verdicts of `python -m benchmarks.language`, from its trainings.

A file may hold less than was asked for: what is missing is a dash, and two models are compared
over the seeds that both have.
"""

import itertools
import math
import statistics
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from benchmarks.language_models import HYBRIDS, MODELS, ORDER, PURE
from benchmarks.machine import describe

BySeed = dict[int, float]


def perplexities(results: dict) -> dict[str, BySeed]:
    """{model: {seed: exp(nats per token)}}, in the order of `MODELS`."""
    found: dict[str, BySeed] = {}
    for name in MODELS:
        of_model = [t for t in results["trainings"] if t["model"] == name]
        if of_model:
            found[name] = {t["seed"]: math.exp(t["nats_per_token"]) for t in of_model}
    return found


def table(results: dict) -> Table:
    found = perplexities(results)
    first = {t["model"]: t for t in reversed(results["trainings"])}
    title = f"perplexity of held-out text after {results['settings']['tokens']:,} tokens"
    made = Table(title=title, title_justify="left")
    made.add_column("model")
    made.add_column("what it is")
    for name in ("parameters", "perplexity", "nats per token", "seeds", "published"):
        made.add_column(name, justify="right")
    for name, by_seed in found.items():
        model, nats = MODELS[name], [math.log(value) for value in by_seed.values()]
        made.add_row(
            name,
            model.meaning,
            f"{first[name]['parameters']:,}",
            _spread(list(by_seed.values()), 1),
            _spread(nats, 3),
            str(len(by_seed)),
            f"{model.published:.2f}" if model.published else "-",
        )
    return made


def verdicts(results: dict) -> Iterator[str]:
    """Each step of the published order, and the hybrids against both pure forms."""
    found = perplexities(results)
    for worse, better in itertools.pairwise(ORDER):
        if worse in found and better in found:
            gains = _gains(found[worse], found[better])
            yield f"{worse} > {better}: {_outcome(gains)}; {_in_words(gains, better)}"
    for hybrid in HYBRIDS:
        for pure in PURE:
            if hybrid in found and pure in found:
                gains = _gains(found[pure], found[hybrid])
                yield f"{hybrid} against {pure} alone: {_in_words(gains)}"


def show(results: dict, console: Console) -> None:
    """Everything but the picture."""
    console.print(table(results))
    made = "means of the seeds ± their standard deviation; published: 340 M parameters, 15 B tokens"
    for sentence in (made, describe(results["machine"]), *verdicts(results)):
        console.print(sentence, markup=False, highlight=False)


def _gains(before: BySeed, after: BySeed) -> list[float]:
    """By how many nats per token `after` is lower, for every seed that both have."""
    seeds = sorted(before.keys() & after.keys())
    return [math.log(before[seed]) - math.log(after[seed]) for seed in seeds]


def _outcome(gains: list[float]) -> str:
    if not gains:
        return "not compared"
    if min(gains) > 0:
        return "as published"
    return "NOT as published" if max(gains) <= 0 else "not decided, seeds differ"


def _in_words(gains: list[float], name: str = "") -> str:
    if not gains:
        return "no seed in common"
    mean, wins = statistics.fmean(gains), sum(gain > 0 for gain in gains)
    sign = 1 if mean > 0 else -1
    text = f"{'lower' if mean > 0 else 'higher'} by {_spread([sign * g for g in gains], 3)}"
    subject = f"{name} is " if name else ""
    return f"{subject}{text} nats per token, lower with {wins} of {len(gains)} seeds"


def _spread(values: list[float], digits: int) -> str:
    """The mean, and with several values their standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ±{statistics.stdev(values):.{digits}f}"
