"""Tables and sentences of `python -m benchmarks.crossover`, from its raw numbers."""

import statistics
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from benchmarks.crossings import Crossing, crossing
from benchmarks.machine import describe

SOFTMAX = "softmax"
PARTS = ("whole", "core")
PASSES = {
    "forward": "forward",
    "training": "forward + backward",
    "decode": "one token after n",
}
COMMON_CLAIM = (2000, 8000)  # tokens; repeated in many places, with no source that measured it


def curve(
    results: dict, mixer: str, head_dim: int, part: str, way: str, quantity: str = "milliseconds"
) -> dict[int, float]:
    """{length: median milliseconds, or bytes} of one mixer."""
    wanted = {"mixer": mixer, "head_dim": head_dim, "part": part, "pass": way}
    found = {}
    for point in results["points"]:
        if all(point[name] == value for name, value in wanted.items()):
            value = point[quantity]
            found[point["length"]] = statistics.median(value) if quantity != "bytes" else value
    return dict(sorted(found.items()))


def crossing_of(
    results: dict, mixer: str, head_dim: int, part: str, way: str, quantity: str = "milliseconds"
) -> Crossing | None:
    mine, softmax = (
        curve(results, name, head_dim, part, way, quantity) for name in (mixer, SOFTMAX)
    )
    return crossing(mine, softmax)


def head_dims(results: dict) -> list[int]:
    return sorted({point["head_dim"] for point in results["points"]})


def mixers(results: dict) -> list[str]:
    """As they were measured, softmax attention first."""
    names = results["settings"]["mixers"]
    return sorted(names, key=lambda name: name != SOFTMAX)


def tables(results: dict) -> Iterator[Table]:
    for way in PASSES:
        yield _crossings(results, way, "milliseconds")
    for way in ("training", "decode"):
        yield _crossings(results, way, "bytes")
    for head_dim in head_dims(results):
        yield _longest(results, head_dim)


def show(results: dict, console: Console) -> None:
    """Everything but the pictures."""
    for table in tables(results):
        console.print(table)
    width = results["settings"]["width"]
    busy = ", ".join(f"{load:g}" for load in results["loads"])
    lines = [
        f"{describe(results['machine'])}; float32, batch 1, width {width}, medians",
        f"processes that ran beside the measurement, before each start: {busy}",
        *summary(results),
        *results["notes"],
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False)


def summary(results: dict) -> Iterator[str]:
    """The measured crossovers of a training pass beside the common claim, one line a head size."""
    low, high = COMMON_CLAIM
    yield (
        f"a common claim is that linear mixers overtake softmax attention at {low:,} to {high:,} "
        "tokens; measured here, forward + backward of the whole mixer:"
    )
    for head_dim in head_dims(results):
        at: dict[str, list[str]] = {}
        for name in mixers(results):
            found = crossing_of(results, name, head_dim, "whole", "training")
            if found is not None and name != SOFTMAX:
                shown = name if found.tokens is None else f"{name} {found}"
                at.setdefault(_place(found, low, high), []).append(shown)
        yield f"d={head_dim}: " + "; ".join(f"{place}: {', '.join(at[place])}" for place in at)


def _place(found: Crossing, low: int, high: int) -> str:
    if found.tokens is None:
        return f"from {found}" if found.below else str(found)
    if found.tokens < low:
        return "earlier"
    return "as claimed" if found.tokens <= high else "later"


def _crossings(results: dict, way: str, quantity: str) -> Table:
    what = {"milliseconds": "time", "bytes": "memory"}[quantity]
    parts = ("whole",) if quantity == "bytes" and way == "decode" else PARTS
    columns = [(d, part) for d in head_dims(results) for part in parts]
    table = Table(
        "mixer",
        *(f"d={d} {part}" for d, part in columns),
        title=f"n from which the {what} of {PASSES[way]} is below softmax attention's (n/d)",
    )
    for name in mixers(results):
        if name == SOFTMAX:
            continue
        cells = []
        for d, part in columns:
            found = crossing_of(results, name, d, part, way, quantity)
            cells.append("-" if found is None else found.per(d))
        table.add_row(name, *cells)
    return table


def _longest(results: dict, head_dim: int) -> Table:
    """Times and bytes at the longest length of each pass, with ratios to softmax attention."""
    at = {way: max(curve(results, SOFTMAX, head_dim, "whole", way), default=None) for way in PASSES}
    where = ", ".join(f"{PASSES[way]} at n={n:,}" for way, n in at.items() if n is not None)
    units = {"forward": ("ms", 1.0), "training": ("ms", 1.0), "decode": ("us", 1e3)}
    columns = [(way, part) for way in PASSES for part in PARTS if at[way] is not None]
    held = [way for way in ("training", "decode") if at[way] is not None]
    table = Table(
        "mixer",
        *(f"{way} {part} {units[way][0]}" for way, part in columns),
        *({"training": "training MiB", "decode": "state KiB"}[way] for way in held),
        title=f"d={head_dim}, {where}; in brackets: of softmax attention's",
    )
    for name in mixers(results):
        cells = []
        for way, part in columns:
            mine, softmax = (
                curve(results, n, head_dim, part, way).get(at[way]) for n in (name, SOFTMAX)
            )
            cells.append(_cell(mine, softmax, units[way][1]))
        for way in held:
            unit = {"training": 2**-20, "decode": 2**-10}[way]
            mine, softmax = (
                curve(results, n, head_dim, "whole", way, "bytes").get(at[way])
                for n in (name, SOFTMAX)
            )
            cells.append(_cell(mine, softmax, unit))
        table.add_row(name, *cells)
    return table


def _cell(value: float | None, softmax: float | None, unit: float) -> str:
    if value is None or softmax is None:
        return "-"
    return f"{_digits(value * unit)} ({_digits(value / softmax)})"


def _digits(value: float) -> str:
    """Three significant digits, never in powers of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
