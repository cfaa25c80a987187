"""Trains the models of `python -m benchmarks.language`: runs of train.py, several at a time.

Every training is a run of its own, in a process with one thread, and continues where it was
stopped.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.language_models import overrides_of
from benchmarks.saved import Refused
from conf.cli import CONF, override

_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """One training: its run is `root`/<model>-seed<seed>."""

    model: str
    seed: int
    tokens: int
    root: Path
    data_root: Path

    @property
    def folder(self) -> Path:
        return self.root / f"{self.model}-seed{self.seed}"

    def overrides(self) -> list[str]:
        """Everything but the defaults of train.py: its data, optimizer and schedule."""
        return [
            _typed("run.root", self.root),
            f"run.name={self.folder.name}",
            f"seed={self.seed}",
            _typed("data.root", self.data_root),
            "logger=none",
            f"trainer.tokens={self.tokens}",
            "trainer.minutes=null",
            "trainer.sample_tokens=0",
            *self.own_overrides(),
        ]

    def own_overrides(self) -> list[str]:
        return overrides_of(self.model)

    def forget(self) -> None:
        """Removes the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def summary(self) -> dict | None:
        """The closing numbers of the run; None before it is finished."""
        file = self.folder / "summary.json"
        return json.loads(file.read_text()) if file.is_file() else None

    def tokens_done(self) -> int:
        """By the last whole line of its metrics, which is written on."""
        try:
            lines = (self.folder / "metrics.jsonl").read_text().split("\n")
        except FileNotFoundError:
            lines = []
        return json.loads(lines[-2])["tokens"] if len(lines) > 1 else 0


def finished(
    jobs: list[Job], at_once: int, advance: Callable[[int], None]
) -> Iterator[tuple[Job, dict]]:
    """Trains all `jobs`, `at_once` at a time; yields each with its summary when it is finished.

    Args:
        advance: called every second with the tokens that all jobs have consumed.

    Raises:
        Refused: a training failed; its last words say why. The others are stopped, and continue
            when they are asked for again.
    """
    waiting, running = list(jobs), {}
    done = 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = _start(job)
            time.sleep(_POLL_SECONDS)
            for job, process in list(running.items()):
                if process.poll() is not None:
                    del running[job]
                    yield job, _summary(job, process)
                    done += job.tokens
            advance(done + sum(job.tokens_done() for job in running))
    finally:
        for process in running.values():
            process.terminate()  # saves after the current step
        for process in running.values():
            process.wait()


def _start(job: Job) -> subprocess.Popen:
    job.root.mkdir(parents=True, exist_ok=True)
    with _log(job).open("w") as log:
        return subprocess.Popen(
            [sys.executable, "train.py", *job.overrides()],
            cwd=CONF.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which stops the others
        )


def _summary(job: Job, process: subprocess.Popen) -> dict:
    summary = job.summary() if process.returncode == 0 else None
    if summary is None:
        said = _log(job).read_text().strip() or "no output"
        start = max(said.rfind("error: "), 0)  # the end of what it said, whole
        raise Refused(f"training {job.folder.name} failed, {_log(job)} ends with\n{said[start:]}")
    return summary


def _typed(key: str, path: Path) -> str:
    (argument,) = shlex.split(override(key, str(path.absolute())))
    return argument


def _log(job: Job) -> Path:
    return job.root / f"{job.folder.name}.log"
