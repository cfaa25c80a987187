"""python -m benchmarks.loader: how fast rows of a large data set are read, and what it takes.

    python -m benchmarks.loader                     # 100 billion tokens on sparse files, a minute
    python -m benchmarks.loader --tokens 1e9 --workers 0 1 4 --rows 16
    python -m benchmarks.loader --read outputs/loader/loader.json

Every number comes from a process of its own (loader_draw.py): seconds from nothing open to the
first batch, tokens per second after that, and the anonymous memory that opening and drawing add
to the process that reads rows; as stored, and with emphasis on long documents (data.by_length).
The data set has shards of zeros that take no disk, and real starts of documents, 8 bytes each,
which are removed at the end.

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
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from benchmarks.loader_set import write_sparse_set
from benchmarks.machine import cpu_machine, describe, load
from benchmarks.saved import (
    Count,
    CpuMachine,
    Refused,
    make_folder,
    read_results,
    start_or_continue,
    stopped,
)
from conf.cli import CONF
from kernels.arguments import whole_number
from model.training.files import write_atomic

PEAK = 989.4e12
"""Dense bfloat16 operations per second of an NVIDIA H100 SXM (data sheet)."""

TARGET = 20
_FIXED = {"tokens": 10**11, "document_tokens": 1000, "seq_len": 4096, "rows": 128, "seconds": 5}
_WORKERS = (0, 1)


class Settings(BaseModel):
    """What all points share."""

    tokens: Count
    document_tokens: Count
    seq_len: Count
    rows: Count
    seconds: Count


class Point(BaseModel):
    """One process."""

    workers: int = Field(ge=0, le=256)
    by_length: bool
    first_batch_seconds: float = Field(gt=0)
    tokens_per_second: float = Field(gt=0)
    anonymous_mb: float = Field(ge=0)
    load: float = Field(ge=0)


class Results(BaseModel):
    machine: CpuMachine
    settings: Settings
    points: list[Point] = Field(min_length=1)


def main(arguments: list[str] | None = None) -> int:
    """The command; 2 where it cannot run."""
    options = parse(arguments)
    try:
        make_folder(options.output)
        if options.read:
            results = read_results(options.read, Results)
        else:
            results = run(options.output / "loader.json", options)
    except (Refused, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(stopped(options.fresh), file=sys.stderr)
        return 130
    show(results, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.loader",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
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
        "--workers", type=int, nargs="+", choices=range(65), metavar="N",
        help="loader processes, default 0 1",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--output", type=Path, default=Path("outputs/loader"), metavar="FOLDER")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier JSON file")
    options = parser.parse_args(arguments)
    if options.read:
        names = (*_FIXED, "workers")
        given = [name for name in names if getattr(options, name) is not None]
        given += ["fresh"] if options.fresh else []
        if given:
            typed = " ".join(f"--{name.replace('_', '-')}" for name in given)
            parser.error(f"--read measures nothing: leave out {typed}")
    for name, value in {**_FIXED, "workers": _WORKERS}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.tokens <= options.seq_len:
        parser.error(f"--tokens {options.tokens}: give more than one row, --seq-len")
    return options


def run(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measures what `file` lacks of what `options` ask for, saving after every point."""
    settings = {name: getattr(options, name) for name in _FIXED}
    nothing = {"machine": cpu_machine(), "settings": settings, "points": []}
    results = start_or_continue(file, Results, nothing, options.fresh)
    done = {(point["workers"], point["by_length"]) for point in results["points"]}
    work = [(workers, by) for by in (False, True) for workers in sorted(set(options.workers))]
    left = [point for point in work if point not in done]
    if not left:
        return results
    with (
        tempfile.TemporaryDirectory(dir=file.parent) as place,
        tqdm(
            total=len(work),
            initial=len(work) - len(left),
            desc="loader",
            disable=not sys.stderr.isatty(),
        ) as bar,
    ):
        folder = Path(place) / "set"
        write_sparse_set(folder, options.tokens, options.document_tokens)
        for workers, by_length in left:
            before = load()
            found = _drawn(folder, options, workers, by_length)
            point = {"workers": workers, "by_length": by_length, **found, "load": before}
            results["points"].append(point)
            write_atomic(file, json.dumps(results, indent=1) + "\n")
            bar.update()
    return results


def consumed(seq_len: int) -> float:
    """Tokens per second that no training of model=340m on one H100 can exceed."""
    import torch
    from hydra import compose, initialize_config_dir

    from conf.cli import validate
    from conf.schema import TrainSettings
    from model.network import LanguageModel

    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = validate(compose("train", ["model=340m"]), TrainSettings)
    with torch.device("meta"):
        model = LanguageModel(settings.model, 32_768)
    return PEAK / (3 * model.flops_per_token(seq_len))


def show(results: dict[str, Any], console: Console) -> None:
    """Prints the table, the arithmetic and whether the target is met."""
    settings = results["settings"]
    console.print(describe(results["machine"]), highlight=False)
    table = Table(
        title=f"{settings['tokens']:,} tokens, batches of {settings['rows']} rows of "
        f"{settings['seq_len']:,}",
        title_justify="left",
    )
    columns = ("workers", "by length", "first batch (s)", "tokens/s", "x an H100 at its peak",
               "anonymous MB", "load before")  # fmt: skip
    for name in columns:
        table.add_column(name, justify="right")
    bound = consumed(settings["seq_len"])
    for point in results["points"]:
        table.add_row(
            str(point["workers"]),
            "yes" if point["by_length"] else "no",
            f"{point['first_batch_seconds']:.2f}",
            f"{point['tokens_per_second']:,.0f}",
            f"{point['tokens_per_second'] / bound:.1f}",
            f"{point['anonymous_mb']:.0f}",
            f"{point['load']:.1f}",
        )
    console.print(table)
    best = max(point["tokens_per_second"] for point in results["points"])
    needed = TARGET * 0.4 * bound
    console.print(
        f"model=340m costs {PEAK / bound / 1e9:.2f} GFLOP a token in training: at most "
        f"{bound:,.0f} tokens/s on an H100 at its peak, {0.4 * bound:,.0f} at 40 % of it.\n"
        f"{TARGET} times the latter is {needed:,.0f} tokens/s: "
        f"{'met' if best >= needed else 'missed'}, {best / needed:.2f} of it",
        highlight=False,
    )


def _drawn(
    folder: Path, options: argparse.Namespace, workers: int, by_length: bool
) -> dict[str, float]:
    numbers = (options.seq_len, options.rows, workers, options.seconds)
    # All documents are equally long: one bucket has them, and is looked up like any other.
    bucket = [str(options.document_tokens), "4"] if by_length else []
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loader_draw", folder, *map(str, numbers), *bucket],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Refused(f"benchmarks.loader_draw ended with exit code {done.returncode}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
