"""python -m benchmarks.recall: which mixers answer what they have read (MQAR).

    python -m benchmarks.recall --quick         # four models, one rate and seed: about two minutes
    python -m benchmarks.recall                 # all of them, under an hour on 2 cores
    python -m benchmarks.recall --models softmax kda --seeds 5      # adds to the same file
    python -m benchmarks.recall --read outputs/recall/recall.json

Multi-query associative recall after Zoology (data/mqar.py): rows of pairs of a key and a value, and
of questions for the value of a key. Trains models of two blocks (recall_models.py) of every kind of
mixer, hybrids, and linear mixers with states of several sizes, and tests them on rows with few and
many pairs, and on rows twice as long as in training (recall_train.py). As in Zoology, each model
has the best of the same learning rates. Much smaller than published (a vocabulary of 8,192, rows of
up to 512 tokens), so that it runs on a CPU: compare orders, not numbers. Prints accuracies by model
and number of pairs, by size of the state, and whether the published orders were found. Leaves every
training, hardware and versions in recall.json, saved as it goes: the same command continues.
recall.png is beside it.
"""

if __name__ == "__main__":  # as the commands do, and before torch is imported
    from conf.process import tune_process

    tune_process()

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tqdm import tqdm

from benchmarks.command import command, parser_of
from benchmarks.machine import cpu_machine
from benchmarks.recall_models import MODELS, RESIZED
from benchmarks.recall_picture import draw
from benchmarks.recall_report import show
from benchmarks.recall_results import Results
from benchmarks.recall_train import Setup
from benchmarks.recall_work import Task, done, first_tasks, more_seeds, train_all
from benchmarks.saved import Refused, make_folder, read_results, start_or_continue
from kernels.arguments import real_number, whole_number
from model.training.files import write_atomic

# Chosen in short trials of softmax attention, linear, GLA and DeltaNet: models first learn nothing
# for some hundred steps, the fewer the smaller the vocabulary, which has to hold 64 keys here.
_SHARED = {
    "vocab_size": 130,
    "length": 128,
    "pairs": [4, 8, 16, 32],
    "batch": 16,
    "steps": 800,
    "test_rows": 128,
}
_WANTED = {"models": (*MODELS, *RESIZED), "rates": (0.006, 0.01), "seeds": 3}
_QUICK = {"models": ("softmax", "linear", "gla", "deltanet"), "rates": (0.006,), "seeds": 1}

_rate = real_number(1e-6, 1, allowed="from 1e-6 to 1", example="0.01")


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.read:
        results = read_results(options.read, Results)
        make_folder(options.output)
    else:
        setup = _setup(options)
        make_folder(options.output)
        results = run(options.output / "recall.json", setup, options)
    draw(results, options.output / "recall.png")
    show(results, Console(width=None if sys.stdout.isatty() else 160))
    print(f"numbers and picture: {options.output}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("benchmarks.recall", __doc__)
    parser.add_argument("--quick", action="store_true", help="few models, about two minutes")
    parser.add_argument(
        "--models", nargs="+", choices=_WANTED["models"], metavar="MODEL",
        help=f"default: all; of {', '.join(repr(name) for name in _WANTED['models'])}",
    )  # fmt: skip
    parser.add_argument(
        "--rates", nargs="+", type=_rate, metavar="LR",
        help=f"learning rates to choose from, default {_shown(_WANTED['rates'])}",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=whole_number(most=1000), metavar="N",
        help=f"0 to N - 1, default {_WANTED['seeds']}; models of other sizes have one",
    )  # fmt: skip
    for name, most, text in (
        ("vocab-size", 65536, "token ids"),
        ("length", 8192, "tokens of a row in training"),
        ("pairs", 2048, "pairs of rows in training"),
        ("batch", 4096, "rows per step"),
        ("steps", 10**6, "at most, per training"),
        ("test-rows", 10**6, "of each kind"),
    ):
        default = _SHARED[name.replace("-", "_")]
        several = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(
            f"--{name}", type=whole_number(most=most), metavar="N", **several,
            help=f"{text}, default {_shown(default)}",
        )  # fmt: skip
    parser.add_argument(
        "--jobs", type=whole_number(most=1024), metavar="N",
        help="trainings at a time, each on one core; default: as many as there are cores",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what was trained before")
    parser.add_argument("--output", type=Path, default=Path("outputs/recall"), metavar="FOLDER")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier recall.json")
    options = parser.parse_args(arguments)
    given = [name for name in (*_WANTED, *_SHARED, "jobs") if getattr(options, name) is not None]
    fixed = [name for name in given if name in _QUICK]
    if options.quick and fixed:
        parser.error(f"--quick fixes what {_typed(fixed)} sets: leave out one of them")
    given += [name for name in ("quick", "fresh") if getattr(options, name)]
    if options.read and given:
        parser.error(f"--read trains nothing: leave out {_typed(given)}")
    for name, value in {**_WANTED, **_SHARED, **(_QUICK if options.quick else {})}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.jobs = options.jobs or os.cpu_count() or 1
    options.pairs = sorted(set(options.pairs))
    options.rates = sorted(set(options.rates))
    return options


def run(file: Path, setup: Setup, options: argparse.Namespace) -> dict[str, Any]:
    """Trains what `file` lacks of what `options` ask for, saving after every training."""
    torch.set_num_threads(1)  # as in each of several processes
    settings = {name: getattr(options, name) for name in _SHARED}
    nothing = {"machine": cpu_machine(), "settings": settings, "trainings": []}
    results = start_or_continue(file, Results, nothing, options.fresh)
    models = [name for name in _WANTED["models"] if name in options.models]
    first = first_tasks(models, options.rates)
    others = sum(name not in RESIZED for name in models) * (options.seeds - 1)
    with tqdm(total=len(first) + others, desc="trainings", disable=not sys.stderr.isatty()) as bar:
        for tasks in _phases(results, models, options, first):
            left = [task for task in tasks if task not in done(results["trainings"])]
            bar.update(len(tasks) - len(left))
            for training in train_all(setup, left, min(options.jobs, max(1, len(left)))):
                results["trainings"].append(training)
                write_atomic(file, json.dumps(results, indent=1) + "\n")
                bar.update()
    return results


def _phases(
    results: dict[str, Any], models: list[str], options: argparse.Namespace, first: list[Task]
) -> Iterator[list[Task]]:
    """The second one follows from the results of the first."""
    yield first
    yield more_seeds(results["trainings"], models, options.seeds)


def _setup(options: argparse.Namespace) -> Setup:
    try:
        return Setup(**{name: getattr(options, name) for name in _SHARED})
    except ValueError as error:
        raise Refused(str(error)) from error


def _shown(default: Any) -> str:
    return f"{default}" if isinstance(default, int) else " ".join(f"{x:g}" for x in default)


def _typed(names: list[str]) -> str:
    return " ".join(f"--{name.replace('_', '-')}" for name in names)


if __name__ == "__main__":
    sys.exit(main())
