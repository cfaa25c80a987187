"""python -m benchmarks.crossover: from which length on each mixer is faster than softmax attention.

    python -m benchmarks.crossover --quick     # about a minute: one head size, short rows
    python -m benchmarks.crossover             # under ten minutes on 2 cores
    python -m benchmarks.crossover --lengths 8192 16384 --minutes 30      # adds to the same file
    python -m benchmarks.crossover --read outputs/crossover/crossover.json

Time and memory of every mixer preset but `conv` against the length n and the head size d, at a
fixed width of the model, on this machine's CPU: forward, forward + backward, and one decoding step
after n tokens; of the whole mixer and of its core (mixer_calls.py says what that is). Medians of
repeats that all mixers take in turns. Prints where each mixer overtakes softmax attention in n and
in n/d, interpolated between lengths, or that it does not in the measured range. Leaves every
repeat, hardware and versions in crossover.json, saved as it goes: the same command continues.
Pictures of time against length (time-dD.png) and of all crossovers (crossover.png) are beside it.
"""

if __name__ == "__main__":  # as the commands do, and before torch is imported
    from conf.process import tune_process

    tune_process()

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from tqdm import tqdm

from benchmarks.command import command, parser_of
from benchmarks.crossover_measure import Group, Instruments, groups, measure, measured
from benchmarks.crossover_picture import draw
from benchmarks.crossover_report import SOFTMAX, show
from benchmarks.crossover_results import Results
from benchmarks.machine import cpu_machine, load
from benchmarks.mixer_calls import build
from benchmarks.presets import PRESETS
from benchmarks.saved import Refused, make_folder, read_results, start_or_continue
from benchmarks.timing import Budget, cpu_milliseconds, cpu_peak_bytes
from kernels.arguments import real_number, whole_number
from model.training.files import write_atomic

WIDTH, HEAD_DIMS = 256, (32, 64, 128)
LENGTHS, CONTEXTS = (128, 256, 512, 1024, 2048, 4096), (128, 512, 2048, 8192, 32768)
MINUTES = 8.0  # and up to one more for the repeat that is under way, and for pictures
QUICK = {
    "head_dims": (64,),
    "lengths": (256, 1024, 2048),
    "contexts": (512, 2048, 8192),
    "minutes": 0.8,
}

_minutes = real_number(0.1, allowed="of minutes >= 0.1", example="5")


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    file = options.output / "crossover.json"
    if options.read:
        results = read_results(options.read, Results)
        make_folder(options.output)
    else:
        _check_widths(options)
        make_folder(options.output)
        settings = {"width": options.width, "mixers": options.mixers}
        nothing = {"machine": cpu_machine(), "settings": settings}
        nothing |= {"loads": [], "points": [], "notes": []}
        results = start_or_continue(file, Results, nothing, options.fresh)
        run(results, file, options)
    draw(results, options.output)
    show(results, Console(width=None if sys.stdout.isatty() else 160))
    print(f"numbers and pictures: {options.output}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("benchmarks.crossover", __doc__)
    tokens = whole_number(most=2**20)
    parser.add_argument("--quick", action="store_true", help="one head size, about a minute")
    parser.add_argument(
        "--mixers", nargs="+", choices=PRESETS, help="default: all; softmax is always measured"
    )
    parser.add_argument(
        "--width", type=whole_number(most=8192), help=f"of the model, default {WIDTH}"
    )
    for name, kind, metavar, text, default in (
        ("--head-dims", whole_number(most=1024), "D", "d, which divide the width", HEAD_DIMS),
        ("--lengths", tokens, "N", "of rows", LENGTHS),
        ("--contexts", tokens, "N", "tokens before a decoded one", CONTEXTS),
    ):
        shown = " ".join(map(str, default))
        parser.add_argument(
            name, nargs="+", type=kind, metavar=metavar, help=f"{text}, default {shown}"
        )
    parser.add_argument("--minutes", type=_minutes, help=f"time to spend, default {MINUTES:g}")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--output", type=Path, default=Path("outputs/crossover"), metavar="FOLDER")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier crossover.json")
    options = parser.parse_args(arguments)
    given = {
        name: f"--{name.replace('_', '-')}"
        for name in ("mixers", "width", "head_dims", "lengths", "contexts", "minutes")
        if getattr(options, name) is not None
    }
    fixed = [typed for name, typed in given.items() if name in QUICK]
    if options.quick and fixed:
        parser.error(f"--quick fixes what {' '.join(fixed)} sets: leave out one of them")
    if options.read and (given or options.quick or options.fresh):
        flags = [f"--{name}" for name in ("quick", "fresh") if getattr(options, name)]
        parser.error(f"--read measures nothing: leave out {' '.join([*given.values(), *flags])}")
    _fill(options)
    return options


def _fill(options: argparse.Namespace) -> None:
    """Defaults for what was not given."""
    defaults = {
        "width": WIDTH,
        "head_dims": HEAD_DIMS,
        "lengths": LENGTHS,
        "contexts": CONTEXTS,
        "minutes": MINUTES,
        **(QUICK if options.quick else {}),
    }
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    chosen = options.mixers or PRESETS
    options.mixers = [name for name in PRESETS if name in chosen or name == SOFTMAX]


def run(results: dict, file: Path, options: argparse.Namespace) -> None:
    """Measures what `results` lacks of what `options` ask for, saving after every group."""
    left = groups(options.head_dims, options.lengths, options.contexts, measured(results["points"]))
    results["notes"] = []
    if left:
        results["loads"].append(load())
    budget = Budget(60 * options.minutes)

    def save() -> None:
        write_atomic(file, json.dumps(results, indent=1) + "\n")

    with tqdm(
        total=budget.seconds,
        disable=not sys.stderr.isatty(),
        bar_format="{desc} {bar} {n:.0f} of {total:.0f} s",
    ) as bar:

        def timer(call, count: int) -> float:
            spent = cpu_milliseconds(call, count)
            advance()
            return spent

        def peak_bytes(call) -> int:
            found = cpu_peak_bytes(call)
            advance()
            return found

        def advance(group: Group | None = None) -> None:
            if group is not None:
                bar.set_description_str(str(group))
            bar.update(min(budget.seconds, budget.seconds - budget.left()) - bar.n)

        missing = measure(
            left,
            results["points"],
            options.mixers,
            options.width,
            Instruments(timer, peak_bytes),
            budget,
            save,
            advance,
        )
    if missing:
        names = ", ".join(map(str, missing))
        results["notes"] = [f"not measured, the time was over (start again to add it): {names}"]
    save()


def _check_widths(options: argparse.Namespace) -> None:
    longest = max(*options.lengths, *options.contexts) + 1
    for head_dim in sorted(set(options.head_dims)):
        if options.width % head_dim:
            raise Refused(
                f"--head-dims {head_dim} does not divide --width {options.width} into heads"
            )
        for name in options.mixers:
            try:
                with torch.device("meta"):
                    build(name, options.width, head_dim, longest)
            except ValueError as error:
                raise Refused(f"{name} with --head-dims {head_dim}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
