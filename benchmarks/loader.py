"""python -m benchmarks.loader: how fast rows of a large data set are read, and what it takes.

    python -m benchmarks.loader                     # 100 billion tokens on sparse files, minutes
    python -m benchmarks.loader --configurations plain by_length --workers 0 1 4
    python -m benchmarks.loader --read outputs/loader/loader.json
    python -m benchmarks.loader --fresh --save      # publish: benchmarks/results, docs/order.md

Every number comes from a process of its own (loader_draw.py): seconds from nothing open to the
first batch; tokens per second after that, and per second of CPU time of all processes, which hardly
depends on what else the machine does; and the anonymous memory that opening and drawing add to the
process that reads rows. Once for one data set, a mixture, stages with shorter rows, and emphasis on
long documents (data.by_length), the first time, when lengths are looked up, and after that.

The data set has shards of zeros that take no disk, and real starts of documents of many lengths, 8
bytes each, which are removed at the end. So what a disk needs to find a row is not measured.

The target is 20 times what training consumes. That is bounded by arithmetic: an H100 SXM has at
most 989.4e12 dense bfloat16 operations per second (NVIDIA's data sheet), and a token costs 3 times
its forward pass, which the model counts for model=340m. No training is faster than that; 40 % of
it is taken for what good ones reach. Leaves all numbers, hardware and versions
in loader.json, saved as it goes: the same command continues.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from tqdm import tqdm

from benchmarks.command import command, parser_of
from benchmarks.loader_report import save, show
from benchmarks.loader_results import CONFIGURATIONS, Results
from benchmarks.loader_set import write_sparse_set
from benchmarks.machine import cpu_machine, load
from benchmarks.saved import Refused, make_folder, read_results, start_or_continue
from conf.cli import CONF
from kernels.arguments import whole_number
from model.training.files import write_atomic

_FIXED = {"tokens": 10**11, "document_tokens": 1000, "seq_len": 4096, "rows": 128, "seconds": 5}
_WORKERS = (0, 2)


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    make_folder(options.output)
    if options.read:
        results = read_results(options.read, Results)
    else:
        results = run(options.output / "loader.json", options)
    if options.save:
        save(results, CONF.parent)
    show(results, Console(width=None if sys.stdout.isatty() else 120))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("benchmarks.loader", __doc__)
    for name, most, text in (
        ("tokens", 10**13, "of the data set"),
        ("document-tokens", 10**9, "of each document"),
        ("seq-len", 2**20, "tokens of a row"),
        ("rows", 2**16, "of a batch"),
        ("seconds", 600, "that batches are drawn for"),
    ):
        shown = f"{_FIXED[name.replace('-', '_')]:,}"
        parser.add_argument(
            f"--{name}", type=whole_number(most=most), metavar="N", help=f"{text}, default {shown}"
        )
    parser.add_argument(
        "--configurations", nargs="+", choices=CONFIGURATIONS, metavar="NAME",
        help=f"of {', '.join(CONFIGURATIONS)}; default all",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, nargs="+", choices=range(65), metavar="N",
        help="loader processes, default 0 2",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--output", type=Path, default=Path("outputs/loader"), metavar="FOLDER")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier JSON file")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/loader.json and docs/order.md"
    )
    options = parser.parse_args(arguments)
    names = (*_FIXED, "configurations", "workers")
    given = [f"--{name}".replace("_", "-") for name in names if getattr(options, name) is not None]
    if options.read and (given or options.fresh):
        given += ["--fresh"] if options.fresh else []
        parser.error(f"--read measures nothing: leave out {' '.join(given)}")
    if options.save and given:
        parser.error(f"--save publishes the whole measurement: leave out {' '.join(given)}")
    defaults = {**_FIXED, "configurations": list(CONFIGURATIONS), "workers": _WORKERS}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.seq_len % 4:
        parser.error(f"--seq-len {options.seq_len}: stages have rows of a quarter; give 4 N")
    if options.tokens <= 10 * options.seq_len:
        parser.error(f"--tokens {options.tokens}: give more than ten rows, --seq-len")
    return options


def run(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measures what `file` lacks of what `options` ask for, saving after every point."""
    settings = {name: getattr(options, name) for name in _FIXED}
    nothing = {"machine": cpu_machine(), "settings": settings, "points": []}
    results = start_or_continue(file, Results, nothing, options.fresh)
    done = {(point["configuration"], point["workers"]) for point in results["points"]}
    work = [
        (configuration, workers)
        for configuration in CONFIGURATIONS
        if configuration in options.configurations
        for workers in sorted(set(options.workers))
    ]
    left = [point for point in work if point not in done]
    if not left:
        return results
    before = load()  # once: later on it would be that of this command
    with (
        tempfile.TemporaryDirectory(dir=file.parent) as place,
        tqdm(
            total=len(work),
            initial=len(work) - len(left),
            desc="loader",
            disable=not sys.stderr.isatty(),
        ) as bar,
    ):
        # The second one is for mixtures.
        folders = [Path(place) / "set", Path(place) / "other"]
        for number, (folder, tokens) in enumerate(
            zip(folders, (options.tokens, options.tokens // 10), strict=True)
        ):
            write_sparse_set(folder, tokens, options.document_tokens, number)
        for configuration, workers in left:
            _make_ready(configuration, options, folders)
            found = _drawn(configuration, workers, options.seconds, options, folders)
            point = {"configuration": configuration, "workers": workers, **found, "load": before}
            results["points"].append(point)
            write_atomic(file, json.dumps(results, indent=1) + "\n")
            bar.update()
    return results


def _make_ready(configuration: str, options: argparse.Namespace, folders: Sequence[Path]) -> None:
    """Has the buckets of data.by_length stored, or none of them, as the configuration says."""
    stored = list(folders[0].glob("lengths-*.bin"))
    if configuration == "by_length_first":
        for file in stored:
            file.unlink()
    elif configuration == "by_length" and not stored:
        _drawn("by_length_first", 0, 0, options, folders)


def _drawn(
    configuration: str,
    workers: int,
    seconds: int,
    options: argparse.Namespace,
    folders: Sequence[Path],
) -> dict[str, float]:
    numbers = (options.seq_len, options.rows, workers, seconds)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.loader_draw",
            configuration,
            *map(str, numbers),
            *folders,
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Refused(f"benchmarks.loader_draw ended with exit code {done.returncode}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
