"""Pictures of a run, drawn from metrics.jsonl alone: loss, learning rate and throughput.

The loss picture shows training in nats per token (raw and smoothed) with the validation points, and
beside it the validation in bits per byte, where the baselines are: units that differ get axes of
their own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from model.training.metrics_file import Row, is_validation, read

_TRAIN = "#3b6ea5"
_VALIDATION = "#c8553d"
_BASELINE = "#6b6b6b"


def draw(metrics_file: Path, folder: Path, baselines: Mapping[str, float]) -> list[Path]:
    """Draws the pictures of a run into `folder`, which is created when missing.

    Args:
        metrics_file: the run's metrics.jsonl.
        baselines: names and values in bits per byte, drawn as horizontal lines; may be empty.

    Returns:
        the files written; none for a run without a train row.
    """
    rows = read(metrics_file)
    train = [row for row in rows if not is_validation(row)]
    validation = [row for row in rows if is_validation(row)]
    if not train:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _save(_loss(train, validation, baselines), folder / "loss.png"),
        _save(_curve(train, "learning_rate", "learning rate"), folder / "learning_rate.png"),
        _save(_throughput(train), folder / "throughput.png"),
    ]


def smooth(steps: Sequence[int], values: Sequence[float], length: float) -> np.ndarray:
    """Exponential moving average over optimizer steps, without the bias of its start.

    Args:
        steps: increasing; gaps count with their length.
        values: one per step; those that are not finite are passed over.
        length: steps after which a value's weight has fallen to 1/e.
    """
    result = np.empty(len(values))
    total = weight = 0.0
    previous = steps[0]
    for index, (step, value) in enumerate(zip(steps, values, strict=True)):
        keep = np.exp(-(step - previous) / length)
        previous = step
        total, weight = total * keep, weight * keep
        if np.isfinite(value):
            total, weight = total + value, weight + 1.0
        result[index] = total / weight if weight else np.nan
    return result


def _loss(
    train: Sequence[Row], validation: Sequence[Row], baselines: Mapping[str, float]
) -> Figure:
    bits = [(row["step"], row["val_bits_per_byte"]) for row in validation]
    figure = Figure(figsize=(11 if bits else 6, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if bits else 1, squeeze=False)[0]

    steps = [row["step"] for row in train]
    losses = [row["loss"] for row in train]
    axes[0].plot(steps, losses, color=_TRAIN, alpha=0.3, linewidth=0.8, label="train")
    axes[0].plot(
        steps,
        smooth(steps, losses, max(5, steps[-1] / 40)),
        color=_TRAIN,
        linewidth=1.8,
        label="train, smoothed",
    )
    if validation:
        axes[0].plot(
            [row["step"] for row in validation],
            [row["val_nats_per_token"] for row in validation],
            "o-",
            color=_VALIDATION,
            markersize=4,
            linewidth=1,
            label="validation",
        )
    _finish(axes[0], "loss (nats per token)")
    axes[0].legend(frameon=False)

    if bits:
        axes[1].plot(*zip(*bits, strict=True), "o-", color=_VALIDATION, markersize=4, linewidth=1.5)
        for name, value in baselines.items():
            axes[1].axhline(value, color=_BASELINE, linewidth=1, linestyle=(0, (4, 3)))
            axes[1].annotate(
                f"{name} {value:.2f}",
                (1, value),
                xycoords=("axes fraction", "data"),
                xytext=(-2, 3),
                textcoords="offset points",
                horizontalalignment="right",
                color=_BASELINE,
                fontsize=9,
            )
        last_step, last = bits[-1]
        axes[1].annotate(
            f"{last:.3f}",
            (last_step, last),
            xytext=(0, 8),
            textcoords="offset points",
            horizontalalignment="right",
            color=_VALIDATION,
        )
        _finish(axes[1], "validation (bits per byte)")
    return figure


def _curve(train: Sequence[Row], key: str, label: str) -> Figure:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [row["step"] for row in train], [row[key] for row in train], color=_TRAIN, linewidth=1.8
    )
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    _finish(axes, label)
    return figure


def _throughput(train: Sequence[Row]) -> Figure:
    figure = _curve(train, "tokens_per_second", "throughput (tokens per second)")
    axes = figure.axes[0]
    axes.yaxis.set_major_formatter(EngFormatter())
    median = float(np.median([row["tokens_per_second"] for row in train]))
    axes.axhline(median, color=_BASELINE, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_title(f"median {median:,.0f} tokens per second", fontsize=10, loc="right")
    return figure


def _finish(axes: Axes, label: str) -> None:
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(label)
    axes.set_xlim(left=0)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)  # draws without a display, whatever backend is configured
    figure.savefig(path, dpi=130)
    return path
