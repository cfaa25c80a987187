"""python -m benchmarks.approximation: how close feature maps come to softmax attention.

    python -m benchmarks.approximation                      # a few minutes on 2 cores
    python -m benchmarks.approximation --dim 64 --scale 0.5 --seeds 4
    python -m benchmarks.approximation --read outputs/approximation/approximation.json

Errors of the outputs and of the attention weights of every feature map that may have a denominator,
untrained, in float64 (approximation_errors.py defines them): of FAVOR+ over the number of random
features, with orthogonal and with independent rows; of all maps over the standard deviation of the
scores q.k / sqrt(d), an inverse temperature, and over the length. "mean of values" gives all tokens
the same weight: a map that is no better has not seen the scores. Prints tables and whether FAVOR+
errs less with more features and with orthogonal rows; leaves approximation.json (every seed,
hardware, versions) and approximation.png in the output folder.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from torch import nn
from tqdm import tqdm

from benchmarks.approximation_errors import Point, all_maps, errors, random_maps
from benchmarks.approximation_report import draw, show
from benchmarks.machine import cpu_machine
from benchmarks.saved import Refused, make_folder, read_results
from kernels.arguments import whole_number
from model.feature_maps.cosformer import DEFAULT_LENGTH
from model.training.files import write_atomic

FEATURES = (16, 32, 64, 128, 256, 512, 1024, 2048)
SCALES = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
LENGTHS = (64, 128, 256, 512, 1024)
_FIELDS = ("machine", "settings", "errors")
_CHOICES = (
    "dim", "length", "scale", "random_features", "features", "scales", "lengths", "seeds"
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """The command; 2 where it cannot run."""
    options = parse(arguments)
    try:
        make_folder(options.output)
        results = read_results(options.read, _FIELDS) if options.read else run(options)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not options.read:
        write_atomic(options.output / "approximation.json", json.dumps(results, indent=1) + "\n")
    draw(results, options.output / "approximation.png")
    show(results, Console(width=None if sys.stdout.isatty() else 160))
    print(f"numbers and picture: {options.output}")
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.approximation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    tokens = whole_number(most=DEFAULT_LENGTH)  # cosFormer's longest row
    count = whole_number(most=65536)
    parser.add_argument("--dim", type=whole_number(most=256), default=32, help="width of a head")
    parser.add_argument("--length", type=tokens, default=512, help="tokens, where not varied")
    parser.add_argument("--scale", type=_scale, default=0.25, help="of scores, where not varied")
    parser.add_argument(
        "--random-features", type=count, metavar="M", help="where not varied; default: 4 x dim"
    )
    parser.add_argument("--features", nargs="+", type=count, default=FEATURES, metavar="M")
    parser.add_argument("--scales", nargs="+", type=_scale, default=SCALES, metavar="S")
    parser.add_argument("--lengths", nargs="+", type=tokens, default=LENGTHS, metavar="T")
    parser.add_argument("--seeds", type=whole_number(most=1000), default=12)
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/approximation"), metavar="FOLDER"
    )
    parser.add_argument("--read", type=Path, metavar="FILE", help="show an earlier JSON file")
    options = parser.parse_args(arguments)
    if options.read:
        given = sorted(n for n in _CHOICES if getattr(options, n) != parser.get_default(n))
        if given:
            typed = " ".join(f"--{name.replace('_', '-')}" for name in given)
            parser.error(f"--read measures nothing: leave out {typed}")
    if options.random_features is None:
        options.random_features = 4 * options.dim
    return options


def run(options: argparse.Namespace) -> dict:
    machine = cpu_machine()
    settings = {name: getattr(options, name) for name in _CHOICES}
    settings["seeds"] = list(range(options.seeds))
    found = []
    work = list(_work(options))
    for sweep, features, point in tqdm(work, "errors", disable=not sys.stderr.isatty()):
        maps = _maps(sweep, features, point)
        for name, of_map in errors(point, maps).items():
            at = {"features": features, "scale": point.scale, "length": point.length}
            found.append({"sweep": sweep, "map": name, **at, "seed": point.seed, **of_map})
    return {"machine": machine, "settings": settings, "errors": found}


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


def _scale(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 1e-6 <= scale <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1e-6 to 100, such as 0.5")
    return scale


if __name__ == "__main__":
    sys.exit(main())
