import math
import random

import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from model.training.metrics_file import append, is_validation, read
from model.training.plots import draw, loss_figure, smooth

CLOSING = {"val_nats_per_token": 2.75, "val_bits_per_byte": 1.7}


def run_of(path, steps, with_validation):
    noise = random.Random(0)
    for step in range(1, steps + 1):
        loss = 2.5 + 5 * math.exp(-step / 60) + noise.gauss(0, 0.08)
        rate = 0.02 * min(step / 20, 1.0, (steps + 1 - step) / (0.4 * steps))
        row = {"step": step, "tokens": step * 4096, "loss": loss, "learning_rate": rate}
        append(path, row | {"tokens_per_second": 9000 + noise.gauss(0, 150)})
        if with_validation and step % 50 == 0:
            nats = loss + 0.1
            values = {"val_nats_per_token": nats, "val_bits_per_byte": nats / 1.6}
            append(path, {"step": step, "tokens": step * 4096, **values})


@pytest.mark.parametrize("with_validation", [True, False])
def test_pictures_are_drawn_from_the_metrics_alone(tmp_path, with_validation):
    run_of(tmp_path / "metrics.jsonl", 300, with_validation)
    baselines = {"unigram": 4.6, "gzip": 2.1}
    files = draw(tmp_path / "metrics.jsonl", tmp_path / "plots", baselines, CLOSING)
    assert [path.name for path in files] == ["loss.png", "learning_rate.png", "throughput.png"]
    for path in files:
        picture = matplotlib.image.imread(path)
        assert picture.shape[0] > 300
        assert picture.std() > 0.01


def test_a_run_with_a_single_step_and_a_nan_is_drawn(tmp_path):
    row = {"step": 1, "tokens": 1, "loss": math.nan, "learning_rate": 0.1}
    append(tmp_path / "metrics.jsonl", row | {"tokens_per_second": 1.0})
    assert len(draw(tmp_path / "metrics.jsonl", tmp_path / "plots", {}, None)) == 3


def test_a_run_without_rows_has_no_pictures(tmp_path):
    assert draw(tmp_path / "metrics.jsonl", tmp_path / "plots", {}, CLOSING) == []


def test_the_closing_validation_and_every_baseline_are_in_the_loss_picture(tmp_path):
    run_of(tmp_path / "metrics.jsonl", 300, with_validation=True)
    rows = read(tmp_path / "metrics.jsonl")
    train = [row for row in rows if not is_validation(row)]
    figure = loss_figure(train, list(filter(is_validation, rows)), {"gzip": 1.71}, CLOSING)
    for axes, value in zip(figure.axes, (2.75, 1.7), strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        closing = lines[f"all held-out text: {value:.3f}"]
        assert closing.get_xydata().tolist() == [[300, value]]
    assert lines["gzip: 1.710"].get_ydata() == [1.71, 1.71]
    assert f"validation: {rows[-1]['val_bits_per_byte']:.3f}" in lines


def test_labels_cover_no_curve_however_close_the_values_are(tmp_path):
    run_of(tmp_path / "metrics.jsonl", 300, with_validation=True)
    rows = read(tmp_path / "metrics.jsonl")
    last = rows[-1]["val_bits_per_byte"]
    train = [row for row in rows if not is_validation(row)]
    baselines = {"gzip": last + 0.01, "unigram": last + 0.02}
    figure = loss_figure(train, list(filter(is_validation, rows)), baselines, CLOSING)
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        assert not axes.texts
        legend, curves = axes.get_legend().get_window_extent(), axes.get_window_extent()
        assert legend.y0 >= curves.y1
        assert figure.bbox.x0 <= legend.x0
        assert legend.x1 <= figure.bbox.x1
        assert legend.y1 <= figure.bbox.y1


def test_smoothing_keeps_constants_and_weights_by_steps():
    assert smooth([1, 2, 9], [-3.0, -3.0, -3.0], 4) == pytest.approx([-3.0] * 3)
    keep = math.exp(-2 / 4)
    assert smooth([1, 3], [1.0, -2.0], 4)[1] == pytest.approx((keep - 2) / (keep + 1))


def test_smoothing_passes_over_values_that_are_not_finite():
    result = smooth([1, 2, 3], [math.nan, 2.0, math.inf], 4)
    assert np.isnan(result[0])
    assert result[1:] == pytest.approx([2.0, 2.0])
