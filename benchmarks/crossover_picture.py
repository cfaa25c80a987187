"""Pictures of `python -m benchmarks.crossover`: time against length, and all crossovers."""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.crossings import Crossing
from benchmarks.crossover_report import (
    COMMON_CLAIM,
    PARTS,
    PASSES,
    SOFTMAX,
    crossing_of,
    curve,
    head_dims,
    mixers,
)
from benchmarks.machine import describe
from benchmarks.presets import preset

_LINES = ("-", "--", "-.", ":")


def draw(results: dict, folder: Path) -> list[Path]:
    """One picture of curves per head size, and one of the crossovers; returns the files."""
    written = [_curves(results, d, folder / f"time-d{d}.png") for d in head_dims(results)]
    return [*written, _overview(results, folder / "crossover.png")]


def _curves(results: dict, head_dim: int, path: Path) -> Path:
    """Milliseconds against length, log-log; a column per pass, a row per part."""
    styles = _styles(mixers(results))
    figure, axes = plt.subplots(
        len(PARTS), len(PASSES), figsize=(16, 10), squeeze=False, sharex="col"
    )
    for panels, part in zip(axes, PARTS, strict=True):
        for panel, way in zip(panels, PASSES, strict=True):
            softmax = curve(results, SOFTMAX, head_dim, part, way)
            for name in mixers(results):
                points = curve(results, name, head_dim, part, way)
                panel.loglog(points.keys(), points.values(), label=name, **styles[name])
                found = crossing_of(results, name, head_dim, part, way)
                if name != SOFTMAX and found is not None and found.tokens is not None:
                    height = _on_curve(softmax, found.tokens)
                    color = styles[name]["color"]
                    panel.plot(found.tokens, height, "o", color=color, markeredgecolor="black")
            _plain_ticks(panel, list(softmax))
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.set_title(f"{part}: {PASSES[way]}", fontsize=10)
            panel.grid(True, alpha=0.3)
        panels[0].set_ylabel("milliseconds")
    for panel in axes[-1]:
        panel.set_xlabel("n, tokens")
    title = f"d={head_dim}, width {results['settings']['width']}; dots: overtakes softmax attention"
    figure.suptitle(f"{title}\n{describe(results['machine'])}", fontsize=10)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=9)
    return _save(figure, path)


def _overview(results: dict, path: Path) -> Path:
    """Crossovers of time by mixer, a panel per pass; filled: whole mixer, open: its core."""
    names = [name for name in mixers(results) if name != SOFTMAX]
    dims = head_dims(results)
    figure, axes = plt.subplots(1, len(PASSES), figsize=(16, 0.36 * len(names) + 2.6), sharey=True)
    for panel, way in zip(axes, PASSES, strict=True):
        panel.axvspan(*COMMON_CLAIM, color="gray", alpha=0.15, lw=0)
        for row, name in enumerate(names):
            for number, head_dim in enumerate(dims):
                height = row + 0.5 * ((number + 0.5) / len(dims) - 0.5)
                for part in PARTS:
                    found = crossing_of(results, name, head_dim, part, way)
                    if found is not None:
                        _mark(panel, found, height, f"C{number}", part == "whole")
        panel.set_xscale("log")
        _plain_ticks(panel, sorted({p["length"] for p in results["points"] if p["pass"] == way}))
        panel.set_xlabel("n, tokens")
        panel.set_title(PASSES[way], fontsize=10)
        panel.grid(True, axis="x", alpha=0.3)
        panel.set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    handles = [
        Line2D([], [], color=f"C{n}", marker="o", linestyle="", label=f"d={d}")
        for n, d in enumerate(dims)
    ]
    marks = {"o": "whole mixer", "<": "ahead from the shortest length", ">": "none measured"}
    handles += [
        Line2D([], [], color="gray", marker=mark, linestyle="", label=text)
        for mark, text in marks.items()
    ]
    handles.append(
        Line2D([], [], color="gray", marker="o", fillstyle="none", linestyle="", label="its core")
    )
    low, high = COMMON_CLAIM
    handles.append(plt.Rectangle((0, 0), 1, 1, color="gray", alpha=0.15, lw=0))
    handles[-1].set_label(f"common claim, {low:,}-{high:,}")
    figure.suptitle(
        f"n from which a mixer takes less time than softmax attention\n"
        f"{describe(results['machine'])}",
        fontsize=10,
    )
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=9)
    return _save(figure, path)


def _mark(panel: plt.Axes, found: Crossing, height: float, color: str, filled: bool) -> None:
    marker, x = "o", found.tokens
    if x is None:
        marker, x = ("<", found.shortest) if found.below else (">", found.longest)
    fill = "full" if filled else "none"
    panel.plot(x, height, marker, color=color, fillstyle=fill, markersize=5 if filled else 7)


def _on_curve(points: dict[int, float], tokens: float) -> float:
    """The value there, straight between its neighbours in log-log."""
    left, right = max(n for n in points if n <= tokens), min(n for n in points if n >= tokens)
    share = 0.0 if left == right else math.log(tokens / left) / math.log(right / left)
    return points[left] * (points[right] / points[left]) ** share


def _plain_ticks(panel: plt.Axes, lengths: list[int]) -> None:
    panel.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
    panel.xaxis.minorticks_off()


def _styles(names: list[str]) -> dict[str, dict]:
    """Black and gray for softmax attention, one range of colors for each other kind of mixer."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        settings = preset(name)
        if settings.kind == "softmax":
            kinds.setdefault("Greys", []).append(name)
        elif settings.kind == "sparse_linear":
            kinds.setdefault("Purples", []).append(name)
        elif settings.write == "delta":
            kinds.setdefault("Reds", []).append(name)
        else:
            kinds.setdefault("Blues" if settings.normalize else "Greens", []).append(name)
    styles = {}
    for kind, members in kinds.items():
        for number, name in enumerate(members):
            shade = plt.get_cmap(kind)(1.0 - 0.6 * number / len(members))
            styles[name] = {"color": shade, "linestyle": _LINES[number % 4], "marker": "."}
    if SOFTMAX in styles:
        styles[SOFTMAX] |= {"color": "black", "linestyle": "-", "linewidth": 2.5}
    return styles


def _save(figure: plt.Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
