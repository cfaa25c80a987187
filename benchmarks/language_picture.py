"""The picture of `python -m benchmarks.language`."""

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.language_models import MODELS
from benchmarks.language_report import perplexities


def draw(results: dict, path: Path) -> None:
    """A row per model: every seed a dot, their mean a line; published perplexities as text."""
    found = perplexities(results)
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(found) + 1.8))
    for row, (name, by_seed) in enumerate(found.items()):
        color = "C0" if MODELS[name].published else "C1"
        values = list(by_seed.values())
        mean = statistics.fmean(values)
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=color, linewidth=2.5)
        axes.plot(values, [row] * len(values), "o", color=color, alpha=0.6, markersize=5)
        axes.annotate(
            f"{mean:.1f}", (mean, row), (0, 11), textcoords="offset points", ha="center", fontsize=9
        )
    labels = [
        f"{name}: {MODELS[name].meaning}"
        + (f"\n(published {MODELS[name].published:.2f})" if MODELS[name].published else "")
        for name in found
    ]
    axes.set_yticks(range(len(found)), labels)
    axes.set_ylim(len(found) - 0.4, -0.8)
    axes.set_xlabel("perplexity of held-out text; lower is better")
    axes.grid(True, axis="x", alpha=0.3)
    axes.set_title(
        f"{results['settings']['tokens']:,} tokens, equal parameters; dots are seeds", fontsize=11
    )
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
