"""Tables, verdicts and the picture of recall from known accuracies, complete and not."""

import io
import statistics

import matplotlib.pyplot as plt
import pytest
from rich.console import Console

from benchmarks.recall_models import MODELS, RESIZED, SIZES
from benchmarks.recall_picture import draw
from benchmarks.recall_report import kinds, most_pairs, recalled, show, verdicts
from benchmarks.recall_results import Results
from benchmarks.recall_work import best_rates, more_seeds
from benchmarks.saved import read_results
from conf.cli import CONF

MACHINE = {
    "cpu": "Some CPU", "cores": 2, "threads": 1, "torch": "2.13", "python": "3.11",
    "revision": "abc",
}  # fmt: skip
SETTINGS = {
    "vocab_size": 144, "length": 128, "pairs": [4, 8, 16, 32], "batch": 16, "steps": 600,
    "test_rows": 128,
}  # fmt: skip
KINDS = [(128, 4), (128, 8), (128, 16), (128, 32), (256, 32), (256, 64)]
PUBLISHED = {
    "softmax": 1.0, "window64": 0.8, "window16": 0.3, "linear": 0.4, "gla": 0.7, "deltanet": 0.9,
    "gated_deltanet": 0.95, "softmax linear": 1.0, "window64 linear": 0.995, "softmax gla": 1.0,
    "window64 gla": 0.99, "linear softmax": 1.0, "gla softmax": 1.0,
}  # fmt: skip
GROWING = {
    "linear-16": 0.1, "linear-32": 0.2, "linear-128": 0.5, "gla-16": 0.5, "gla-64": 0.695,
    "gla-128": 0.9, "deltanet-16": 0.5, "deltanet-32": 0.7, "deltanet-128": 0.95,
}  # fmt: skip


def training(model: str, accuracy: float, rate: float = 0.01, seed: int = 0) -> dict:
    width = model.partition("-")[2]
    return {
        "model": model, "rate": rate, "seed": seed, "parameters": 9, "steps": 600, "seconds": 30.0,
        "state_bytes": 1000 * int(width or 48),
        "scores": [{"length": n, "pairs": p, "accuracy": accuracy} for n, p in KINDS],
    }  # fmt: skip


def results(accuracies: dict[str, float]) -> dict:
    trainings = [training(model, accuracy) for model, accuracy in accuracies.items()]
    return {"machine": MACHINE, "settings": SETTINGS, "trainings": trainings}


def shown(results: dict) -> list[str]:
    text = io.StringIO()
    show(results, Console(file=text, width=250))
    return [" ".join(line.replace("│", " ").split()) for line in text.getvalue().splitlines()]


def test_the_file_of_a_benchmark_holds_such_results():
    Results.model_validate(results(PUBLISHED | GROWING), strict=True)


def test_a_model_stands_with_the_best_rate_of_seed_0_and_all_its_seeds():
    trainings = [
        training("gla", 0.5, 0.003), training("gla", 0.7, 0.01), training("gla", 0.9, 0.01, seed=1),
        training("gla", 1.0, 0.003, seed=1), training("linear", 0.3, 0.02),
        training("linear", 0.3, 0.003), training("linear-16", 0.2),
    ]  # fmt: skip
    assert best_rates(trainings) == {"gla": 0.01, "linear": 0.003, "linear-16": 0.01}
    found = recalled({"machine": MACHINE, "settings": SETTINGS, "trainings": trainings})
    assert list(found) == ["linear", "gla", "linear-16"]
    assert found["gla"].accuracies[128, 4] == [0.7, 0.9]
    assert found["gla"].cell((128, 4)) == "0.800 ±0.14"
    assert found["linear"].cell((128, 4)) == "0.300"
    assert more_seeds(trainings, ["gla", "linear", "linear-16"], 3) == [
        ("gla", 0.01, 1), ("linear", 0.003, 1), ("gla", 0.01, 2), ("linear", 0.003, 2),
    ]  # fmt: skip


def test_the_best_rate_counts_rows_of_training_and_not_longer_ones():
    short, long = training("gla", 0.5, 0.003), training("gla", 0.4, 0.01)
    for score in long["scores"][4:]:
        score["accuracy"] = 1.0
    assert best_rates([short, long]) == {"gla": 0.003}


def test_published_orders_that_were_found():
    assert kinds(results({})) == (KINDS[:4], KINDS[4:])
    found = list(verdicts(results(PUBLISHED | GROWING)))
    assert all(sentence.startswith("as published: ") for sentence in found)
    assert len(found) == 1 + 6 + 6 + 3
    assert found[0].endswith("everything: accuracy 1.000 or more with 4, 8, 16 and 32 pairs")
    assert found[3] == "as published: linear recalls less than gla: linear 0.400, gla 0.700"
    assert found[7] == (
        "as published: one softmax block, first, restores the recall of linear: linear 0.400, "
        "softmax linear 1.000"
    )
    assert found[-3] == (
        "as published: recall of linear grows with its state, 16 and 32 pairs: 0.100 with 16,000 B,"
        " 0.200 with 32,000 B, 0.400 with 48,000 B, 0.500 with 128,000 B"
    )


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"softmax": 0.98}, "NOT as published: softmax attention answers everything: accuracy 0.9"),
        ({"gla": 0.35}, "NOT as published: linear recalls less than gla: "),
        ({"gla": 0.405}, "NOT as published: linear recalls less than gla: "),
        ({"linear": 1, "gla": 1}, "cannot tell, all answer everything: linear recalls less than g"),
        (
            {"linear softmax": 0.9},
            "NOT as published: one softmax block, last, restores the recall ",
        ),
        ({"window64 gla": 0.5}, "NOT as published: one window64 block, first, restores the reca"),
        ({"gla": 1}, "cannot tell, all answer everything: one softmax block, first, resto"),
        ({"linear-128": 0.3}, "NOT as published: recall of linear grows with its state"),
        ({"gla-64": 0.4}, "NOT as published: recall of gla grows with its state"),
        (
            {"deltanet-16": 1, "deltanet-32": 1, "deltanet": 1, "deltanet-128": 1},
            "cannot tell, all answer everything: recall of deltanet grows with its state",
        ),
    ],
)
def test_published_orders_that_were_not_found(changes, start):
    found = list(verdicts(results(PUBLISHED | GROWING | changes)))
    assert sum(sentence.startswith(start) for sentence in found) == 1, found


def test_softmax_has_to_answer_everything_with_every_number_of_pairs():
    one = results({"softmax": 1.0})
    one["trainings"][0]["scores"][3]["accuracy"] = 0.9
    assert next(verdicts(one)).startswith("NOT as published: softmax attention")
    one["trainings"][0]["scores"][3]["accuracy"] = 1.0
    one["trainings"][0]["scores"][5]["accuracy"] = 0.2  # of longer rows nothing was published
    assert next(verdicts(one)).startswith("as published: softmax attention")


def test_what_is_missing_has_no_verdict_and_no_row(tmp_path):
    some = results({"gla": 0.7, "window64": 0.8})
    assert list(verdicts(some)) == []
    lines = shown(some)
    assert "attention window64 0.800 0.800 0.800 0.800 0.800 0.800 48,000 0.01 600" in lines
    assert "decay gla 0.700 0.700 0.700 0.700 0.700 0.700 48,000 0.01 600" in lines
    assert "gla 32 48,000 0.700 0.700 0.01" in lines
    assert any(line.startswith("means of 1 seed ± standard deviation, at the") for line in lines)
    assert not any("linear" in line for line in lines)
    draw(some, tmp_path / "recall.png")
    alone = results({"deltanet-16": 0.7})
    assert "deltanet 16 16,000 0.700 0.700 0.01" in shown(alone)
    draw(alone, tmp_path / "recall.png")
    draw(results({"softmax": 1.0}), tmp_path / "recall.png")
    assert (tmp_path / "recall.png").read_bytes().startswith(b"\x89PNG")


def test_a_guess_is_stated_and_the_time_that_all_trainings_took():
    (sentence,) = [line for line in shown(results(PUBLISHED)) if line.startswith("means of")]
    assert "a guess among the values is right with 0.014; 13 trainings, 6 minutes of" in sentence


def test_the_picture_shows_every_accuracy_and_the_curves_over_states(tmp_path, monkeypatch):
    monkeypatch.setattr(plt, "close", lambda figure: None)
    draw(results(PUBLISHED | GROWING), tmp_path / "recall.png")
    figure = plt.gcf()
    monkeypatch.undo()
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == [
        name for name in MODELS if name in PUBLISHED
    ]
    assert [text.get_text() for text in left.texts[6:12]] == 6 * ["0.80"]  # window64
    curves = {line.get_label(): line for line in right.get_lines()}
    assert list(curves["gla, 32 pairs"].get_ydata()) == [0.5, 0.7, 0.695, 0.9]
    assert list(curves["gla, 32 pairs"].get_xdata()) == [16_000, 48_000, 64_000, 128_000]
    assert "softmax attention, 16 pairs" in curves
    plt.close("all")


def test_models_of_other_sizes_are_those_that_no_family_has():
    assert not set(MODELS) & set(RESIZED)
    listed = {name for sizes in SIZES.values() for name in sizes.values()}
    assert listed == set(RESIZED) | set(SIZES)


def test_the_published_results_have_every_model_and_their_tables():
    results = read_results(CONF.parent / "benchmarks/results/recall.json", Results)
    text = (CONF.parent / "docs/results.md").read_text()
    found, (trained, longer) = recalled(results), kinds(results)
    assert {*MODELS, *RESIZED} <= set(found)
    for name in MODELS:
        model = found[name]
        cells = [
            f"{model.mean(kind):.2f} ±{statistics.stdev(model.accuracies[kind]):.2f}"
            for kind in (*trained, *longer)
        ]
        assert f"| `{name}` | {' | '.join(cells)} |" in text, name
    for mixer, sizes in SIZES.items():
        for width, name in sizes.items():
            hardest = found[name].mean(most_pairs(results)[-1])
            assert f"| `{mixer}` | {width} | {found[name].state_bytes:,} |" in text
            assert f"{hardest:.2f}" in text
