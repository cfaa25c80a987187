"""python -m benchmarks.language: decays and hybrids compared as language models.

    python -m benchmarks.language                                   # under an hour on 2 cores
    python -m benchmarks.language --models scalar gla --seeds 5     # adds to the same file
    python -m benchmarks.language --tokens 50000 --seeds 1 --output outputs/short   # minutes
    python -m benchmarks.language --read outputs/language/language.json

Trains the models of language_models.py with train.py and its defaults on the source text of
Python's standard library: the same tokens in the same order, equal parameters, several seeds of the
weights. Prints the perplexity of the held-out text, whether the order published for decays comes
out (no decay > RetNet > a scalar data-dependent decay > GLA), and hybrids against both pure forms.
Leaves every training, hardware and versions in language.json, saved as it goes: the same command
continues. The runs are in models/, and language.png is beside it.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from tqdm import tqdm

from benchmarks.command import command, parser_of
from benchmarks.language_models import MODELS
from benchmarks.language_picture import draw
from benchmarks.language_report import show
from benchmarks.language_results import Results
from benchmarks.language_train import Job, finished
from benchmarks.machine import cpu_machine
from benchmarks.saved import Refused, make_folder, read_results, start_or_continue
from kernels.arguments import whole_number
from model.training.files import write_atomic

TOKENS, SEEDS = 1_500_000, 3


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.read:
        results = read_results(options.read, Results)
        make_folder(options.output)
    else:
        make_folder(options.output)
        results = run(options.output, options)
    draw(results, options.output / "language.png")
    show(results, Console(width=None if sys.stdout.isatty() else 160))
    print(f"numbers and picture: {options.output}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("benchmarks.language", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL",
                        help=f"of {' '.join(MODELS)}; default all")  # fmt: skip
    parser.add_argument("--seeds", type=whole_number(most=1000), metavar="N",
                        help=f"0 to N - 1, default {SEEDS}")  # fmt: skip
    parser.add_argument("--tokens", type=whole_number(2048), metavar="N",
                        help=f"of a training, default {TOKENS:,}")  # fmt: skip
    parser.add_argument("--jobs", type=whole_number(most=1024), metavar="N",
                        help="trainings at a time, default one per core")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--output", type=Path, default=Path("outputs/language"), metavar="FOLDER")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier JSON file")
    options = parser.parse_args(arguments)
    names = ("models", "seeds", "tokens", "jobs")
    given = [f"--{name}" for name in names if getattr(options, name) is not None]
    given += ["--fresh"] if options.fresh else []
    if options.read and given:
        parser.error(f"--read measures nothing: leave out {' '.join(given)}")
    options.models = options.models or list(MODELS)
    options.seeds = options.seeds or SEEDS
    options.tokens = options.tokens or TOKENS
    options.jobs = options.jobs or len(os.sched_getaffinity(0))
    return options


def run(output: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Trains what the file lacks of what `options` ask for, saving after every training."""
    file = output / "language.json"
    settings = {"tokens": options.tokens, "data": _prepared(output / "prepared")}
    machine = {**cpu_machine(), "threads": 1}
    nothing = {"machine": machine, "settings": settings, "trainings": []}
    results = start_or_continue(file, Results, nothing, options.fresh)
    known = {(training["model"], training["seed"]) for training in results["trainings"]}
    # Seed by seed, so that what is there after a stop can be compared.
    work = [
        Job(model, seed, options.tokens, output / "models", output / "prepared")
        for seed in range(options.seeds)
        for model in MODELS
        if model in options.models
    ]
    left = [job for job in work if (job.model, job.seed) not in known]
    if options.fresh:
        for job in left:
            job.forget()
    with tqdm(
        total=len(work) * options.tokens,
        initial=(len(work) - len(left)) * options.tokens,
        desc="tokens",
        unit_scale=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        before = bar.n
        for job, summary in finished(left, options.jobs, lambda n: bar.update(before + n - bar.n)):
            results["trainings"].append(
                {
                    "model": job.model,
                    "seed": job.seed,
                    "overrides": job.own_overrides(),
                    "parameters": summary["parameters"],
                    "nats_per_token": summary["val_nats_per_token"],
                    "seconds": summary["train_seconds"],
                }
            )
            write_atomic(file, json.dumps(results, indent=1) + "\n")
    return results


def _prepared(root: Path) -> str:
    """Prepares the data set before trainings ask for it all at once; its fingerprint."""
    from hydra import compose, initialize_config_dir

    from conf.cli import CONF, validate
    from data.config import PrepareSettings
    from data.index import read_index
    from data.prepare import prepare

    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = validate(compose("prepare"), PrepareSettings)
    data = settings.data.model_copy(update={"root": str(root)})
    try:
        return read_index(prepare(data, settings.tokenizer)).fingerprint
    except ValueError as error:
        raise Refused(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
