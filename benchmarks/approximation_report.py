"""Tables, verdicts and the picture of `python -m benchmarks.approximation`, from its errors."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.approximation_errors import IID, MEAN
from benchmarks.machine import describe

SWEEPS = {
    "features": "random features",
    "scale": "standard deviation of q.k / sqrt(d)",
    "length": "tokens",
}
MEASURES = {"outputs": "relative error of outputs", "weights": "share of misplaced weight"}


@dataclass(frozen=True)
class Spread:
    """Errors of one map at one point, over the seeds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        """The median, and with several seeds the standard deviation over them."""
        if len(self.values) == 1:
            return f"{self.median:.2g}"
        return f"{self.median:.2g} ±{statistics.stdev(self.values):.1g}"


Curves = dict[str, dict[float, Spread]]


def curves(results: dict, sweep: str, measure: str) -> Curves:
    """{map: {value of the swept quantity: errors}}, both in the order of measurement."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in results["errors"]:
        if row["sweep"] == sweep:
            found.setdefault(row["map"], {}).setdefault(row[sweep], []).append(row[measure])
    return {
        name: {x: Spread(tuple(values)) for x, values in of_map.items()}
        for name, of_map in found.items()
    }


def slope(curve: dict[float, Spread]) -> float:
    """d log(median error) / d log(x) by least squares; -1/2 for a mean of independent features."""
    x = [math.log(value) for value in curve]
    y = [math.log(spread.median) for spread in curve.values()]
    return statistics.linear_regression(x, y).slope


def advantages(results: dict, measure: str) -> list[float]:
    """Per seed, error of independent rows over that of orthogonal ones: geometric mean over counts.

    Both see the same queries, keys and values.
    """
    found = curves(results, "features", measure)
    orthogonal, independent = found["favor"], found[IID]
    ratios = [
        [b / a for a, b in zip(orthogonal[x].values, independent[x].values, strict=True)]
        for x in orthogonal
    ]
    return [statistics.geometric_mean(of_seed) for of_seed in zip(*ratios, strict=True)]


def chance(wins: int, seeds: int) -> float:
    """Probability of so many wins or more where both are equally good (a sign test)."""
    return sum(math.comb(seeds, n) for n in range(wins, seeds + 1)) / 2**seeds


def verdicts(results: dict) -> Iterator[str]:
    """One sentence each on what FAVOR+ promises, by both measures, whatever came out."""
    for measure, name in MEASURES.items():
        curve = curves(results, "features", measure)["favor"]
        if len(curve) > 1:
            first, last = min(curve), max(curve)
            fell, low = curve[last].median < curve[first].median, curve[last].median
            yield (
                f"FAVOR+ {'errs less' if fell else 'DOES NOT err less'} with more features, "
                f"{name}: {curve[first].median:.3g} with {first}, {low:.3g} with {last}, "
                f"as features^{slope(curve):.2f}"
            )
    for measure, name in MEASURES.items():
        ratios = advantages(results, measure)
        wins = sum(ratio > 1 for ratio in ratios)
        better, probability = statistics.median(ratios) > 1, chance(wins, len(ratios))
        yield (
            f"orthogonal rows {'err less' if better else 'DO NOT err less'} than independent ones, "
            f"{name}: by the factor {statistics.median(ratios):.3f} (median), better with {wins} "
            f"of {len(ratios)} seeds, which chance would give with probability {probability:.2g}"
        )


def tables(results: dict) -> Iterator[Table]:
    settings = results["settings"]
    for sweep, meaning in SWEEPS.items():
        fixed = {
            "features": f"{settings['random_features']} random features",
            "scale": f"scores of standard deviation {settings['scale']:g}",
            "length": f"{settings['length']} tokens",
        }
        held = ", ".join(text for name, text in fixed.items() if name != sweep)
        for measure, name in MEASURES.items():
            found = curves(results, sweep, measure)
            columns = list(next(iter(found.values())))
            title = f"{name} by {meaning}; d={settings['dim']}, {held}"
            table = Table("map", *(f"{x:g}" for x in columns), title=title)
            for label, curve in found.items():
                table.add_row(label, *(str(curve[x]) for x in columns))
            yield table


def show(results: dict, console: Console) -> None:
    """Everything but the picture."""
    for table in tables(results):
        console.print(table)
    seeds = len(results["settings"]["seeds"])
    made = f"medians of {seeds} seeds ± standard deviation over them; float64; causal"
    for sentence in (made, describe(results["machine"]), *verdicts(results)):
        console.print(sentence, markup=False, highlight=False)


def draw(results: dict, path: Path) -> None:
    """A column per sweep, a row per measure; bands are the lowest and highest of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(curves(results, "scale", "outputs"))
    figure, axes = plt.subplots(len(MEASURES), len(SWEEPS), figsize=(15, 8.5), squeeze=False)
    for panels, (measure, name) in zip(axes, MEASURES.items(), strict=True):
        for panel, (sweep, meaning) in zip(panels, SWEEPS.items(), strict=True):
            for label, curve in curves(results, sweep, measure).items():
                x, spreads = zip(*sorted(curve.items()), strict=True)
                style = _style(label, names)
                panel.loglog(x, [spread.median for spread in spreads], label=label, **style)
                if label in ("favor", IID):
                    low = [min(spread.values) for spread in spreads]
                    high = [max(spread.values) for spread in spreads]
                    panel.fill_between(x, low, high, color=style["color"], alpha=0.12, lw=0)
            panel.set_xlabel(meaning)
            panel.set_xticks(x, [f"{value:g}" for value in x])
            panel.xaxis.minorticks_off()
            panel.grid(True, alpha=0.3)
        panels[0].set_ylabel(name)
    settings = results["settings"]
    figure.suptitle(
        f"Feature maps against softmax attention, d={settings['dim']}; where not varied: "
        f"{settings['length']} tokens, scores of standard deviation {settings['scale']:g}, "
        f"{settings['random_features']} random features; {len(settings['seeds'])} seeds",
        fontsize=11,
    )
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    lines = dict(zip(*reversed(axes[0][1].get_legend_handles_labels()), strict=True))
    figure.legend(lines.values(), lines.keys(), loc="lower center", ncols=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _style(label: str, names: list[str]) -> dict:
    special = {
        "favor": {"color": "C0", "linewidth": 2.2, "marker": "o", "markersize": 4},
        IID: {"color": "C1", "linewidth": 2.2, "linestyle": "--", "marker": "s", "markersize": 4},
        MEAN: {"color": "black", "linewidth": 1.5, "linestyle": ":"},
    }
    if label in special:
        return special[label]
    others = [name for name in names if name not in special]
    number = others.index(label)
    style = ("-", "--", "-.", ":")[(number + number // 8) % 4]
    return {"color": f"C{2 + number % 8}", "linestyle": style, "linewidth": 1.4}
