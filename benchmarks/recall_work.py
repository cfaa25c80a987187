"""Which trainings `python -m benchmarks.recall` wants, and processes that do them.

Every model is trained with every learning rate and seed 0; then with the best of them and the other
seeds, but for the models that only differ in size.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from benchmarks.recall_models import RESIZED
from benchmarks.recall_train import Setup, train
from benchmarks.saved import Refused

Task = tuple[str, float, int]  # model, learning rate, seed


def first_tasks(models: Iterable[str], rates: Iterable[float]) -> list[Task]:
    """Every model with every rate, and seed 0."""
    return [(model, rate, 0) for rate in rates for model in models]


def more_seeds(trainings: list[dict[str, Any]], models: Iterable[str], seeds: int) -> list[Task]:
    """The other seeds, with each model's best rate."""
    best = best_rates(trainings)
    return [
        (model, best[model], seed)
        for seed in range(1, seeds)
        for model in models
        if model not in RESIZED
    ]


def best_rates(trainings: list[dict[str, Any]]) -> dict[str, float]:
    """{model: the rate with the highest mean accuracy of seed 0}; the lower one of equal rates."""
    found: dict[str, tuple[float, float]] = {}
    for training in trainings:
        if training["seed"] == 0:
            key = (mean_accuracy(training), -training["rate"])
            found[training["model"]] = max(key, found.get(training["model"], key))
    return {model: -rate for model, (_, rate) in found.items()}


def mean_accuracy(training: dict[str, Any]) -> float:
    """Over the kinds of rows that the model was trained on: the shortest."""
    length = min(score["length"] for score in training["scores"])
    scores = [s["accuracy"] for s in training["scores"] if s["length"] == length]
    return sum(scores) / len(scores)


def done(trainings: Iterable[dict[str, Any]]) -> set[Task]:
    return {(training["model"], training["rate"], training["seed"]) for training in trainings}


def train_all(setup: Setup, tasks: list[Task], jobs: int) -> Iterator[dict[str, Any]]:
    """Does `tasks` in so many processes of one thread each, and yields each as it is finished.

    One job is done in this process. However many there are, the results are the same.

    Raises:
        Refused: a process was killed.
    """
    if jobs == 1:
        for task in tasks:
            yield train(setup, *task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_process) as pool:
        futures = [pool.submit(train, setup, *task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise Refused(
                "a process that trained was killed (the system does so where memory ends); what "
                "was finished is saved, and the same command continues, with --jobs 1 in one "
                "process"
            ) from error
        finally:
            # Whatever ends this, nobody waits for trainings that are under way.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()


def _start_process() -> None:
    """One thread; Ctrl-C ends the process without a word, and so does the end of its parent."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
