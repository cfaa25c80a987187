"""Pictures of a run, drawn from metrics.jsonl alone: loss, learning rate and throughput.

The loss picture shows training in nats per token (raw and smoothed) with the validation points, and
beside it the validation in bits per byte, where the baselines are: units that differ get axes of
their own. The closing validation is a mark of its own: it covers the whole held-out text, those
during training the first `trainer.validation_batches` batches of it.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from model.training.metrics_file import Row, is_validation, read

_TRAIN = "#3b6ea5"
_VALIDATION = "#c8553d"
_BASELINE = "#6b6b6b"
_BASELINE_STYLES = ("--", ":", "-.")


def draw(
    metrics_file: Path, folder: Path, baselines: Mapping[str, float], closing: Row | None
) -> list[Path]:
    """Draws the pictures of a run into `folder`, which is created when missing.

    Args:
        metrics_file: the run's metrics.jsonl.
        baselines: names and values in bits per byte, drawn as horizontal lines; may be empty.
        closing: `val_nats_per_token` and `val_bits_per_byte` of the whole held-out text after the
            last step; None: not measured.

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
        _save(loss_figure(train, validation, baselines, closing), folder / "loss.png"),
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


def loss_figure(
    train: Sequence[Row],
    validation: Sequence[Row],
    baselines: Mapping[str, float],
    closing: Row | None,
) -> Figure:
    """The loss picture; arguments as for `draw`, with the rows of metrics.jsonl by kind."""
    panels = 2 if validation or closing else 1
    figure = Figure(figsize=(5.5 * panels, 4.6), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]

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
    _validation(axes[0], validation, closing, "val_nats_per_token", steps[-1])
    _finish(axes[0], "loss (nats per token)")
    _legend(axes[0])
    if panels == 2:
        _validation(axes[1], validation, closing, "val_bits_per_byte", steps[-1])
        for (name, value), style in zip(baselines.items(), cycle(_BASELINE_STYLES), strict=False):
            label = f"{name}: {value:.3f}"
            axes[1].axhline(value, color=_BASELINE, linewidth=1, linestyle=style, label=label)
        _finish(axes[1], "validation (bits per byte)")
        _legend(axes[1])
    return figure


def _validation(
    axes: Axes, rows: Sequence[Row], closing: Row | None, key: str, last_step: int
) -> None:
    """The validations during training as a curve, the closing one as a mark of its own."""
    if rows:
        steps, values = [row["step"] for row in rows], [row[key] for row in rows]
        label = f"validation: {values[-1]:.3f}"
        axes.plot(steps, values, "o-", color=_VALIDATION, markersize=4, linewidth=1.2, label=label)
    if closing is not None:
        axes.plot(
            [last_step],
            [closing[key]],
            "D",
            color="black",
            markerfacecolor="none",
            markersize=7,
            label=f"all held-out text: {closing[key]:.3f}",
        )


def _legend(axes: Axes) -> None:
    """Names and values above the axes, where they cover no curve, however close its lines are."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
        frameon=False,
        fontsize=9,
    )


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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)  # draws without a display, whatever backend is configured
    figure.savefig(path, dpi=130)
    return path
