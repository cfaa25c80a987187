"""python -m benchmarks.approximation: how close feature maps come to softmax attention.

    python -m benchmarks.approximation                      # about a minute on 2 cores
    python -m benchmarks.approximation --seeds 20 --features 512 4096     # adds to the same file
    python -m benchmarks.approximation --dim 64 --scale 0.5 --seeds 4 --output outputs/d64
    python -m benchmarks.approximation --read outputs/approximation/approximation.json

Errors of the outputs and of the attention weights of every feature map that may have a denominator,
untrained, in float64 (approximation_errors.py defines them): of FAVOR+ over the number of random
features, with orthogonal and with independent rows; of all maps over the standard deviation of the
scores q.k / sqrt(d), an inverse temperature, and over the length. "mean of values" gives all tokens
the same weight: a map that is no better has not seen the scores. Prints tables and whether FAVOR+
errs less with more features and with orthogonal rows. Leaves every seed, hardware and versions in
approximation.json, saved as it goes: the same command continues. approximation.png is beside it.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn
from tqdm import tqdm

from benchmarks.approximation_errors import Point, all_maps, errors, random_maps
from benchmarks.approximation_picture import draw
from benchmarks.approximation_report import show
from benchmarks.approximation_results import Results
from benchmarks.command import command, parser_of
from benchmarks.machine import cpu_machine
from benchmarks.saved import make_folder, read_results, start_or_continue
from kernels.arguments import real_number, whole_number
from model.feature_maps.cosformer import DEFAULT_LENGTH
from model.training.files import write_atomic

_FIXED = {"dim": 32, "length": 512, "scale": 0.25, "random_features": None}  # None: 4 x dim
_WANTED = {
    "features": (16, 32, 64, 128, 256, 512, 1024, 2048),
    "scales": (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    "lengths": (64, 128, 256, 512, 1024),
    "seeds": 12,
}

_scale = real_number(1e-6, 100, allowed="from 1e-6 to 100", example="0.5")


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.read:
        results = read_results(options.read, Results)
        make_folder(options.output)
    else:
        make_folder(options.output)
        results = run(options.output / "approximation.json", options)
    draw(results, options.output / "approximation.png")
    show(results, Console(width=None if sys.stdout.isatty() else 160))
    print(f"numbers and picture: {options.output}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("benchmarks.approximation", __doc__)
    tokens = whole_number(most=DEFAULT_LENGTH)  # cosFormer's longest row
    count = whole_number(most=65536)
    for name, kind, metavar, text in (
        ("dim", whole_number(most=256), "D", "width of a head"),
        ("length", tokens, "T", "tokens, where not varied"),
        ("scale", _scale, "S", "of scores, where not varied"),
        ("random-features", count, "M", "where not varied"),
    ):
        shown = _FIXED[name.replace("-", "_")] or "4 x dim"
        parser.add_argument(
            f"--{name}", type=kind, metavar=metavar, help=f"{text}, default {shown}"
        )
    for name, kind, metavar in (
        ("features", count, "M"),
        ("scales", _scale, "S"),
        ("lengths", tokens, "T"),
    ):
        shown = " ".join(f"{value:g}" for value in _WANTED[name])
        parser.add_argument(
            f"--{name}", nargs="+", type=kind, metavar=metavar, help=f"default {shown}"
        )
    parser.add_argument(
        "--seeds", type=whole_number(most=1000), metavar="N",
        help=f"0 to N - 1, default {_WANTED['seeds']}",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/approximation"), metavar="FOLDER"
    )
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier JSON file")
    options = parser.parse_args(arguments)
    if options.read:
        given = [name for name in (*_FIXED, *_WANTED) if getattr(options, name) is not None]
        given += ["fresh"] if options.fresh else []
        if given:
            typed = " ".join(f"--{name.replace('_', '-')}" for name in given)
            parser.error(f"--read measures nothing: leave out {typed}")
    for name, lengths in (("length", [options.length]), ("lengths", options.lengths or [])):
        if 1 in lengths:
            parser.error(
                f"--{name} 1: one token has all the weight with any map, so that there is nothing "
                "to approximate; give 2 or more"
            )
    _fill(options)
    return options


def _fill(options: argparse.Namespace) -> None:
    """Defaults for what was not given."""
    for name, value in {**_FIXED, **_WANTED}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.random_features is None:
        options.random_features = 4 * options.dim


def run(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measures what `file` lacks of what `options` ask for, saving after every point."""
    settings = {name: getattr(options, name) for name in _FIXED}
    nothing = {"machine": cpu_machine(), "settings": settings, "points": []}
    results = start_or_continue(file, Results, nothing, options.fresh)
    done = {(point["sweep"], point[point["sweep"]], point["seed"]) for point in results["points"]}
    work = list(_work(options))
    left = [
        (sweep, features, point)
        for sweep, features, point in work
        if (sweep, _at(features, point)[sweep], point.seed) not in done
    ]
    with tqdm(
        total=len(work),
        initial=len(work) - len(left),
        desc="errors",
        disable=not sys.stderr.isatty(),
    ) as bar:
        for sweep, features, point in left:
            found = errors(point, _maps(sweep, features, point))
            at = {"sweep": sweep, **_at(features, point), "seed": point.seed}
            results["points"].append({**at, "errors": found})
            write_atomic(file, json.dumps(results, indent=1) + "\n")
            bar.update()
    return results


def _at(features: int, point: Point) -> dict[str, float]:
    return {"features": features, "scale": point.scale, "length": point.length}


def _work(options: argparse.Namespace) -> Iterator[tuple[str, int, Point]]:
    """(sweep, number of random features, problem) of everything to measure."""
    seeds, features = range(options.seeds), options.random_features
    for seed in seeds:
        for number in sorted(set(options.features)):
            yield "features", number, Point(options.dim, options.length, options.scale, seed)
        for scale in sorted(set(options.scales)):
            yield "scale", features, Point(options.dim, options.length, scale, seed)
        for length in sorted(set(options.lengths)):
            yield "length", features, Point(options.dim, length, options.scale, seed)


def _maps(sweep: str, features: int, point: Point) -> dict[str, nn.Module | None]:
    make = random_maps if sweep == "features" else all_maps
    return make(point.dim, features, point.seed)


if __name__ == "__main__":
    sys.exit(main())
