"""The picture of `python -m benchmarks.recall`: accuracy of all models, and against the state."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.recall_models import FAMILIES, SIZES
from benchmarks.recall_report import Recalled, kinds, most_pairs, recalled, rows

_LINES = ("-", "--")


def draw(results: dict, path: Path) -> None:
    """Left: models by numbers of pairs; right: recall against bytes of the decoding state."""
    found = recalled(results)
    height = max(5.0, 2.5 + 0.36 * len(found))
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(15, height), width_ratios=(1.15, 1), layout="constrained"
    )
    _heat_map(left, results, found)
    _by_state(right, results, found)
    figure.suptitle(f"Multi-query associative recall: {rows(results)}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _heat_map(panel: plt.Axes, results: dict, found: dict[str, Recalled]) -> None:
    trained, longer = kinds(results)
    columns = [*trained, *longer]
    names = [name for models in FAMILIES.values() for name in models if name in found]
    panel.set_title("accuracy")
    if not names:  # a file with models of other sizes alone
        panel.set_axis_off()
        return
    values = [[found[name].mean(kind) for kind in columns] for name in names]
    panel.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            color = "white" if value < 0.6 else "black"
            panel.text(x, y, f"{value:.2f}", ha="center", va="center", color=color, fontsize=9)
    lengths = [f"\n{length} tokens" if length != trained[0][0] else "" for length, _ in columns]
    panel.set_xticks(
        range(len(columns)),
        [f"{pairs} pairs{text}" for (_, pairs), text in zip(columns, lengths, strict=True)],
    )
    panel.set_yticks(range(len(names)), names)
    panel.axvline(len(trained) - 0.5, color="white", linewidth=3)
    end = -0.5
    for models in FAMILIES.values():
        end += sum(name in found for name in models)
        panel.axhline(end, color="white", linewidth=3)


def _by_state(panel: plt.Axes, results: dict, found: dict[str, Recalled]) -> None:
    hardest = most_pairs(results)
    for kind, line in zip(hardest, _LINES, strict=False):
        for number, (mixer, sizes) in enumerate(SIZES.items()):
            models = [found[name] for name in sizes.values() if name in found]
            if not models:
                continue
            panel.plot(
                [model.state_bytes for model in models],
                [model.mean(kind) for model in models],
                line, color=f"C{number}", marker="o", label=f"{mixer}, {kind[1]} pairs",
            )  # fmt: skip
        if "softmax" in found:
            panel.plot(
                found["softmax"].state_bytes, found["softmax"].mean(kind), "*", color="black",
                markersize=13, fillstyle="full" if line == "-" else "none",
                label=f"softmax attention, {kind[1]} pairs",
            )  # fmt: skip
    panel.set_xscale("log")
    panel.set_ylim(-0.02, 1.04)
    panel.set_xlabel("bytes of the decoding state of a row, both blocks")
    panel.set_ylabel("accuracy")
    panel.set_title("recall against the size of the state")
    panel.grid(True, which="both", alpha=0.3)
    if panel.get_lines():
        panel.legend(fontsize=8)
