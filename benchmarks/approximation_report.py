"""Tables and verdicts of `python -m benchmarks.approximation`, from its errors.

A file may hold less than was asked for, or more seeds at one point than at another: what is missing
is a dash, and what is compared is compared at the points and seeds that both sides have.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.approximation_errors import IID
from benchmarks.machine import describe

SWEEPS = {
    "features": "random features",
    "scale": "standard deviation of q.k / sqrt(d)",
    "length": "tokens",
}
MEASURES = {"outputs": "relative error of outputs", "weights": "share of misplaced weight"}
_ROUNDING = 1e-14  # errors up to this are float64's own: no ratio is taken of them


@dataclass(frozen=True)
class Spread:
    """Errors of one map at one point, by seed."""

    by_seed: dict[int, float]

    @property
    def median(self) -> float:
        return statistics.median(self.by_seed.values())

    @property
    def ends(self) -> tuple[float, float]:
        return min(self.by_seed.values()), max(self.by_seed.values())

    def __str__(self) -> str:
        """The median, and with several seeds the standard deviation over them."""
        if len(self.by_seed) == 1:
            return f"{self.median:.2g}"
        return f"{self.median:.2g} ±{statistics.stdev(self.by_seed.values()):.1g}"


Curve = dict[float, Spread]  # by value of the varied quantity, ascending


def curves(results: dict, sweep: str, measure: str) -> dict[str, Curve]:
    """{map: its errors}, in the order of measurement."""
    found: dict[str, dict[float, dict[int, float]]] = {}
    for point in results["points"]:
        if point["sweep"] == sweep:
            for name, errors in point["errors"].items():
                of_map = found.setdefault(name, {})
                of_map.setdefault(point[sweep], {})[point["seed"]] = errors[measure]
    return {
        name: {x: Spread(by_seed) for x, by_seed in sorted(of_map.items())}
        for name, of_map in found.items()
    }


def slope(curve: Curve) -> float:
    """d log(median error) / d log(x) by least squares; -1/2 for a mean of independent features."""
    x = [math.log(value) for value in curve]
    y = [math.log(spread.median) for spread in curve.values()]
    return statistics.linear_regression(x, y).slope


def advantages(results: dict, measure: str) -> list[float]:
    """Per seed, error of independent rows over that of orthogonal ones: geometric mean over counts.

    Both see the same queries, keys and values. A count with an error of mere rounding is left out.
    """
    found = curves(results, "features", measure)
    orthogonal, independent = found.get("favor", {}), found.get(IID, {})
    ratios: dict[int, list[float]] = {}
    for x in orthogonal.keys() & independent.keys():
        a, b = orthogonal[x].by_seed, independent[x].by_seed
        for seed in a.keys() & b.keys():
            if min(a[seed], b[seed]) > _ROUNDING:
                ratios.setdefault(seed, []).append(math.log(b[seed]) - math.log(a[seed]))
    return [math.exp(statistics.fmean(ratios[seed])) for seed in sorted(ratios)]


def chance(wins: int, seeds: int) -> float:
    """Probability of so many wins or more where both are equally good (a sign test)."""
    return sum(math.comb(seeds, n) for n in range(wins, seeds + 1)) / 2**seeds


def verdicts(results: dict) -> Iterator[str]:
    """One sentence each on what FAVOR+ promises, by both measures, whatever came out."""
    for measure, name in MEASURES.items():
        curve = curves(results, "features", measure).get("favor", {})
        if len(curve) > 1:
            first, last = min(curve), max(curve)
            fell, low = curve[last].median < curve[first].median, curve[last].median
            power = f"no slope: an error is {_ROUNDING:g} or less, which is rounding"
            if all(spread.median > _ROUNDING for spread in curve.values()):
                power = f"as features^{slope(curve):.2f}"
            yield (
                f"FAVOR+ {'errs less' if fell else 'DOES NOT err less'} with more features, "
                f"{name}: {curve[first].median:.3g} with {first}, {low:.3g} with {last}, {power}"
            )
    for measure, name in MEASURES.items():
        ratios = advantages(results, measure)
        if ratios:
            wins = sum(ratio > 1 for ratio in ratios)
            better, probability = statistics.median(ratios) > 1, chance(wins, len(ratios))
            yield (
                f"orthogonal rows {'err less' if better else 'DO NOT err less'} than independent "
                f"ones, {name}: by the factor {statistics.median(ratios):.3f} (median), better "
                f"with {wins} of {len(ratios)} seeds, which chance would give with probability "
                f"{probability:.2g}"
            )
        elif curves(results, "features", measure):
            yield (
                f"orthogonal rows are not compared with independent ones, {name}: at no count and "
                f"seed are both errors above {_ROUNDING:g}, which is rounding"
            )


def tables(results: dict) -> Iterator[Table]:
    for sweep, meaning in SWEEPS.items():
        for measure, name in MEASURES.items():
            found = curves(results, sweep, measure)
            if found:
                columns = sorted({x for curve in found.values() for x in curve})
                title = f"{name} by {meaning}; {held(results['settings'], sweep)}"
                table = Table("map", *(f"{x:g}" for x in columns), title=title)
                for label, curve in found.items():
                    table.add_row(label, *(str(curve.get(x, "-")) for x in columns))
                yield table


def held(settings: dict, sweep: str | None = None) -> str:
    """What does not vary in a sweep."""
    fixed = {
        "dim": f"d={settings['dim']}",
        "features": f"{settings['random_features']} random features",
        "scale": f"scores of standard deviation {settings['scale']:g}",
        "length": f"{settings['length']} tokens",
    }
    return ", ".join(text for name, text in fixed.items() if name != sweep)


def seeds(results: dict) -> str:
    """How many seeds a median is of: "12 seeds", or "3 to 12 seeds" where points differ."""
    numbers = {
        len(spread.by_seed)
        for sweep in SWEEPS
        for curve in curves(results, sweep, "outputs").values()
        for spread in curve.values()
    }
    least, most = min(numbers), max(numbers)
    return f"{most if least == most else f'{least} to {most}'} seed{'s' if most > 1 else ''}"


def zeros(results: dict) -> bool:
    """Whether any error is exactly 0, which a logarithmic axis cannot show."""
    return any(
        error == 0
        for point in results["points"]
        for errors in point["errors"].values()
        for error in (errors["outputs"], errors["weights"])
    )


def show(results: dict, console: Console) -> None:
    """Everything but the picture."""
    for table in tables(results):
        console.print(table)
    made = f"medians of {seeds(results)} ± standard deviation over them; float64; causal"
    for sentence in (made, describe(results["machine"]), *verdicts(results)):
        console.print(sentence, markup=False, highlight=False)
