"""python -m benchmarks.prepare: how fast text is prepared, beside the encoder alone.

    python -m benchmarks.prepare                       # 64 MB, about 2 minutes on 2 cores
    python -m benchmarks.prepare --megabytes 2000 --longest 200 --output outputs/prepare_2gb
    python -m benchmarks.prepare --kind hf_json --output outputs/prepare_json
    python -m benchmarks.prepare --read outputs/prepare/prepare.json

Writes a corpus of which one document is long, trains a vocabulary, and prepares the corpus with
each number of processes by `python -m data.prepare`: reading JSON, copying, hashing, encoding,
writing, checking and the start of Python are all in its time; training the vocabulary is not. Its
speed per core is bytes of text over the CPU seconds of all its processes, which is fair on a busy
machine, too. The encoder alone is sentencepiece (--kind hf_json: tokenizers, byte-level BPE) on
strings in memory, one thread, measured before and after; the ratio is to the faster. Also compares
a document of some megabytes, prepared, with an encoding in one piece. Leaves every number, hardware
and versions in prepare.json, saved as it goes: the same command continues.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.command import command, parser_of
from benchmarks.machine import cpu_machine, describe, load
from benchmarks.prepare_corpus import some_text, write_corpus
from benchmarks.prepare_encoders import KINDS, bare_speed, train
from benchmarks.prepare_results import Results
from benchmarks.saved import Refused, make_folder, read_results, start_or_continue
from data.index import read_index
from data.tokenizer import Tokenizer
from kernels.arguments import whole_number
from model.training.files import write_atomic

_FIXED = {"megabytes": 64, "longest": 8, "vocab_size": 32768}
_KIND = "sentencepiece"
_SEED = 0
_SAMPLE = 8_000_000
_BARE_SECONDS = 3.0
_UNSPLIT = 3_000_000
_TARGET = 0.7
_MOST_MEMORY = 2_000_000_000
_ROOT = Path(__file__).resolve().parent.parent

# A small process in between: the peak memory of a process begins with that of the one that started
# it. The resources are those of the command with all processes that it waited for; peak memory is
# that of the largest. Ctrl-C reaches the command, too, and ends it.
_LAUNCHER = """
import json, os, signal, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
signal.signal(signal.SIGINT, signal.SIG_IGN)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps({
    "exit_code": os.waitstatus_to_exitcode(status),
    "cpu_seconds": used.ru_utime + used.ru_stime,
    "wall_seconds": time.perf_counter() - begin,
    "peak": used.ru_maxrss,
}))
"""


class Used(NamedTuple):
    """What `_LAUNCHER` prints; peak in the units of the operating system."""

    exit_code: int
    cpu_seconds: float
    wall_seconds: float
    peak: int


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.read:
        results = read_results(options.read, Results)
    else:
        make_folder(options.output)
        results = run(options.output / "prepare.json", options)
    show(results, Console(width=None if sys.stdout.isatty() else 120))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("benchmarks.prepare", __doc__)
    size = whole_number(most=1_000_000)
    for name, kind, text in (
        ("megabytes", size, "of text"),
        ("longest", size, "megabytes of the longest document"),
        ("vocab-size", whole_number(least=512, most=1 << 20), "token ids"),
    ):
        shown = f"{text}, default {_FIXED[name.replace('-', '_')]}"
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=shown)
    parser.add_argument(
        "--processes", nargs="+", type=whole_number(most=1024), metavar="N",
        help="default 1 and the number of cores",
    )  # fmt: skip
    parser.add_argument("--kind", choices=KINDS, help="of tokenizer, default sentencepiece")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--output", type=Path, default=Path("outputs/prepare"), metavar="FOLDER")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier JSON file")
    options = parser.parse_args(arguments)
    if options.read:
        names = (*_FIXED, "processes", "kind")
        given = [name for name in names if getattr(options, name) is not None]
        given += ["fresh"] if options.fresh else []
        if given:
            typed = " ".join(f"--{name.replace('_', '-')}" for name in given)
            parser.error(f"--read measures nothing: leave out {typed}")
    others = {"processes": sorted({1, os.cpu_count()}), "kind": _KIND}
    for name, value in (_FIXED | others).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.longest >= options.megabytes:
        parser.error(
            f"--longest {options.longest}: the longest document is part of --megabytes "
            f"{options.megabytes}; give less"
        )
    return options


def run(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measures what `file` lacks of what `options` ask for, saving after every preparation."""
    settings = {name: getattr(options, name) for name in _FIXED}
    if options.kind != _KIND:  # files that do not name it were written before
        settings["kind"] = options.kind
    nothing = {"machine": cpu_machine(), "settings": settings, "unsplit": None, "points": []}
    results = start_or_continue(file, Results, nothing, options.fresh)
    done = {point["processes"] for point in results["points"]}
    left = [number for number in dict.fromkeys(options.processes) if number not in done]
    if not left and results["unsplit"] is not None:
        return results
    work = file.parent / "work"
    shutil.rmtree(work, ignore_errors=True)
    corpus = work / "corpus"
    corpus.mkdir(parents=True)
    try:
        _tell("writing the corpus")
        write_corpus(corpus, options.megabytes * 10**6, options.longest * 10**6, _SEED)
        _tell("training the vocabulary")
        sample = some_text(_SAMPLE, _SEED)
        tokenizer = train(options.kind, options.vocab_size, sample, work)
        for number in left:
            _tell(f"preparing with data.processes={number}")
            results["points"].append(_measured(work, tokenizer, sample, number))
            write_atomic(file, json.dumps(results, indent=1) + "\n")
        if results["unsplit"] is None:
            _tell("comparing with an encoding in one piece")
            results["unsplit"] = _unsplit(work, tokenizer)
            write_atomic(file, json.dumps(results, indent=1) + "\n")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return results


def _measured(work: Path, tokenizer: Tokenizer, sample: str, processes: int) -> dict[str, Any]:
    busy = load()
    before = bare_speed(tokenizer, work, sample, _BARE_SECONDS)
    folder, used = _prepared(work, f"{work}/corpus/*", tokenizer.kind, processes)
    after = bare_speed(tokenizer, work, sample, _BARE_SECONDS)
    index = read_index(folder)
    shutil.rmtree(folder.parent)
    return {
        "processes": processes,
        "bytes": index.train.bytes + index.validation.bytes,
        "tokens": index.train.tokens + index.validation.tokens,
        "bare": [before, after],
        "cpu_seconds": used.cpu_seconds,
        "wall_seconds": used.wall_seconds,
        "peak_bytes": used.peak * (1 if sys.platform == "darwin" else 1024),
        "load": busy,
    }


def _prepared(work: Path, files: str, kind: str, processes: int) -> tuple[Path, Used]:
    """The folder, and what all processes of the command used together."""
    command = [sys.executable, "-m", "data.prepare", f"data.files={files}"]
    command += [f"data.root={work}/prepared", f"data.processes={processes}", "data.seq_len=64"]
    command += [f"tokenizer.path={work}"]
    command += ["tokenizer=hf_json"] if kind == "hf_json" else []
    launch = [sys.executable, "-S", "-c", _LAUNCHER, *command]
    done = subprocess.run(launch, cwd=_ROOT, stdout=subprocess.PIPE, check=True)
    used = Used(**json.loads(done.stdout))
    if used.exit_code:
        raise Refused(f"python -m data.prepare ended with exit code {used.exit_code}")
    (folder,) = (work / "prepared").glob("[!.]*")
    return folder, used


def _unsplit(work: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Prepares a long document beside a short one, which is held out."""
    text = some_text(_UNSPLIT, _SEED + 1)
    files = work / "one"
    files.mkdir()
    (files / "long.txt").write_text(text, encoding="utf-8", newline="")
    (files / "short.txt").write_text(some_text(_UNSPLIT // 10, _SEED + 2), encoding="utf-8")
    folder, _ = _prepared(work, f"{files}/*", tokenizer.kind, 2)
    shard = np.fromfile(folder / "train-00000.bin", read_index(folder).dtype)
    shutil.rmtree(folder.parent)
    whole = [tokenizer.bos_id, *tokenizer.encode(text, limit=len(text)), tokenizer.eos_id]
    return {"bytes": len(text.encode()), "equal": shard.tolist() == whole}


def show(results: dict[str, Any], console: Console) -> None:
    """A table and what holds."""
    settings = results["settings"]
    table = Table(
        title=f"{settings['megabytes']} MB, longest document {settings['longest']} MB, "
        f"{settings['vocab_size']:,} ids of {settings.get('kind', _KIND)}; "
        f"{describe(results['machine'])}",
        title_justify="left",
    )
    for name in ("processes", "MB/s", "MB/s per core", "encoder alone", "ratio", "peak", "load"):
        table.add_column(name, justify="right")
    ratios = []
    for point in sorted(results["points"], key=lambda point: point["processes"]):
        per_core = point["bytes"] / point["cpu_seconds"]
        ratios.append(per_core / max(point["bare"]))
        table.add_row(
            str(point["processes"]),
            f"{point['bytes'] / point['wall_seconds'] / 1e6:.2f}",
            f"{per_core / 1e6:.2f}",
            " ".join(f"{speed / 1e6:.2f}" for speed in point["bare"]),
            f"{ratios[-1]:.2f}",
            f"{point['peak_bytes'] / 1e6:,.0f} MB",
            f"{point['load']:.1f}",
        )
    console.print(table)
    peak = max(point["peak_bytes"] for point in results["points"])
    verdicts = [
        (min(ratios) >= _TARGET, f"speed per core is at least {_TARGET} of the encoder's"),
        (peak < _MOST_MEMORY, "every process stays below 2 GB"),
    ]
    if results["unsplit"] is not None:
        size = results["unsplit"]["bytes"]
        verdicts.append(
            (results["unsplit"]["equal"], f"a document of {size:,} bytes has unsplit tokens")
        )
    for holds, what in verdicts:
        console.print(f"{'yes' if holds else 'NO '}  {what}")


def _tell(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
