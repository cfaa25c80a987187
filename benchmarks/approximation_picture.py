"""The picture of `python -m benchmarks.approximation`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.approximation_errors import IID, MAPS, MEAN
from benchmarks.approximation_report import MEASURES, SWEEPS, curves, held, seeds, zeros

_LINES = ("-", "--", "-.", ":")


def draw(results: dict, path: Path) -> None:
    """A column per sweep, a row per measure; bands are the lowest and highest of the seeds."""
    figure, axes = plt.subplots(len(MEASURES), len(SWEEPS), figsize=(15, 8.5), squeeze=False)
    lines = {}
    for panels, (measure, name) in zip(axes, MEASURES.items(), strict=True):
        for panel, (sweep, meaning) in zip(panels, SWEEPS.items(), strict=True):
            found = curves(results, sweep, measure)
            for label, curve in found.items():
                style = _style(label)
                medians = [spread.median for spread in curve.values()]
                (lines[label],) = panel.plot(list(curve), medians, **style)
                if label in ("favor", IID):
                    low, high = zip(*(spread.ends for spread in curve.values()), strict=True)
                    panel.fill_between(
                        list(curve), low, high, color=style["color"], alpha=0.12, lw=0
                    )
            if found:
                panel.set_xscale("log")
            if any(spread.median > 0 for curve in found.values() for spread in curve.values()):
                panel.set_yscale("log")
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.yaxis.set_major_formatter("{x:g}")
                panel.yaxis.set_minor_formatter(NullFormatter())
            columns = sorted({x for curve in found.values() for x in curve})
            panel.set_xlabel(meaning)
            panel.set_xticks(columns, [f"{value:g}" for value in columns])
            panel.xaxis.minorticks_off()
            panel.grid(True, alpha=0.3)
        panels[0].set_ylabel(name)
    below = "; errors of exactly 0 lie at or below the axis" if zeros(results) else ""
    figure.suptitle(
        "Feature maps against softmax attention; where not varied: "
        f"{held(results['settings'])}; {seeds(results)}{below}",
        fontsize=11,
    )
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.legend(lines.values(), lines.keys(), loc="lower center", ncols=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _style(label: str) -> dict:
    special = {
        "favor": {"color": "C0", "linewidth": 2.2, "marker": "o", "markersize": 4},
        IID: {"color": "C1", "linewidth": 2.2, "linestyle": "--", "marker": "s", "markersize": 4},
        MEAN: {"color": "black", "linewidth": 1.5, "linestyle": ":"},
    }
    if label in special:
        return special[label]
    number = [name for name in MAPS if name not in special].index(label)
    line = _LINES[(number + number // 8) % 4]
    return {"color": f"C{2 + number % 8}", "linestyle": line, "linewidth": 1.4}
