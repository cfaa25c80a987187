"""Print how many bytes and FLOPs the linear-attention kernels need, and how fast they could be.

    python -m kernels.cost
    python -m kernels.cost --op retnet simple --length 65536 --key-width 64 --forward
    python -m kernels.cost --op gated_deltanet kda

For every op: our kernels and those of the published chunk-64 algorithm, the fewest bytes and FLOPs
that any implementation needs, and the shortest time on four GPUs in microseconds with the unit that
sets it (Memory, Tensor cores or Vector units). No GPU is used. docs/cost.md explains the columns.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import get_args

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from kernels.arguments import whole_number
from kernels.cost.accounting import Direction, Dtype, Kernel, Shape, bytes_moved, flops
from kernels.cost.devices import DEVICES, floor_seconds, total_seconds
from kernels.cost.fewest import fewest_kernels
from kernels.cost.ours import our_kernels
from kernels.cost.ours_delta import our_delta_kernels
from kernels.cost.published import published_kernels
from kernels.cost.published_delta import published_delta_kernels
from kernels.triton.blocks import MOST_DELTA_KEYS

OPS = {"gla": "channel", "retnet": "head", "simple": "scalar", "linear": "none"}
DELTA_OPS = {"kda": "channel", "gated_deltanet": "scalar", "deltanet": "none"}
DECAY_SHAPES = {"channel": "[B, T, H, K]", "head": "[H]", "scalar": "[B, T, H]", "none": "None"}
DIRECTIONS: list[Direction] = ["forward", "backward"]
WIDTH = 140  # of the tables, whatever the terminal, so that docs/cost.md can hold them


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    ops = OPS | DELTA_OPS
    chosen = [name for name in DIRECTIONS if getattr(options, name)]
    for op in options.op:
        shape = Shape(
            options.batch,
            options.length,
            options.heads,
            options.key_width,
            options.value_width,
            ops[op],
            options.dtype,
            options.normalize,
            delta=op in DELTA_OPS,
        )
        print(_report(op, shape, chosen or DIRECTIONS))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.cost", description=__doc__.split("\n")[0], allow_abbrev=False
    )
    kinds = [f"{op}: decay {DECAY_SHAPES[decay]}" for op, decay in OPS.items()]
    kinds += [f"{op}: delta rule, decay {DECAY_SHAPES[d]}" for op, d in DELTA_OPS.items()]
    choices, default = [*OPS, *DELTA_OPS], ["gla", "retnet"]
    parser.add_argument("--op", nargs="+", choices=choices, default=default, help=", ".join(kinds))
    shape = Shape()
    for name in ("batch", "length", "heads", "key_width", "value_width"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=whole_number(), default=getattr(shape, name), metavar="N")
    parser.add_argument(
        "--dtype", choices=get_args(Dtype), default="bfloat16", help="of q, k and v"
    )
    parser.add_argument("--normalize", action="store_true", help="divide by q^T z")
    parser.add_argument("--forward", action="store_true", help="only the forward pass")
    parser.add_argument("--backward", action="store_true", help="only the backward pass")
    options = parser.parse_args(arguments)
    delta = [op for op in options.op if op in DELTA_OPS]
    if delta and options.normalize:
        parser.error(f"--normalize: the delta rule ({delta[0]}) has no denominators; leave it out")
    if delta and options.key_width > MOST_DELTA_KEYS:
        parser.error(
            f"--key-width {options.key_width}: the kernels of the delta rule ({delta[0]}) take at "
            f"most {MOST_DELTA_KEYS}"
        )
    return options


def _report(op: str, shape: Shape, directions: list[Direction]) -> str:
    """Everything about one op, as text."""

    def chosen(kernels: list[Kernel]) -> list[Kernel]:
        return [kernel for kernel in kernels if kernel.direction in directions]

    ours = our_delta_kernels if shape.delta else our_kernels
    published = published_delta_kernels if shape.delta else published_kernels
    algorithms = {"fewest": chosen(fewest_kernels(shape)), "ours": chosen(ours(shape))}
    if shape.normalize:
        closing = ["The published kernels compute no denominators, so there is no comparison."]
    else:
        algorithms["published"] = chosen(published(shape))
        closing = [
            f"ours / published: bytes {_ratios(algorithms, directions, bytes_moved)}",
            f"ours / published: FLOPs {_ratios(algorithms, directions, flops)}",
        ]
    title = (
        f"{op}: {'delta rule, ' if shape.delta else ''}decay {DECAY_SHAPES[shape.decay]}, "
        f"{shape.dtype}, B={shape.batch} T={shape.length} H={shape.heads} "
        f"K={shape.key_width} V={shape.value_width}"
        f"{', normalised' if shape.normalize else ''}"
    )
    tables = [_kernel_table(name, algorithms[name], directions) for name in list(algorithms)[1:]]
    tables.append(_summary_table(algorithms, directions))
    return "\n\n".join([title, *map(_text, tables), *closing]) + "\n"


def _text(table: Table) -> str:
    """The table without the blank lines that stand for its upper and lower edges."""
    console = Console(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines() if line.strip())


def _kernel_table(name: str, kernels: list[Kernel], directions: list[Direction]) -> Table:
    """One line per kernel, and one with the sum of each direction."""
    table = _table(
        name, "read GB", "write GB", "request GB", "GFLOP", "vector Gop", "FLOP/byte", *_devices()
    )
    for direction in directions:
        group = [kernel for kernel in kernels if kernel.direction == direction]
        for kernel in group:
            floors = (floor_seconds(kernel, device) for device in DEVICES)
            cells = [f"{seconds * 1e6:.0f} {unit[0].upper()}" for seconds, unit in floors]
            table.add_row(kernel.name, *_amounts([kernel], name), *cells)
        times = [f"{total_seconds(group, device) * 1e6:.0f}" for device in DEVICES]
        table.add_row(f"{direction}, sum", *_amounts(group, name), *times)
    return table


def _amounts(kernels: list[Kernel], algorithm: str) -> list[str]:
    requested = sum(kernel.bytes_requested for kernel in kernels)
    products = sum(kernel.matmul_flops + kernel.tf32_flops for kernel in kernels)
    return [
        f"{sum(kernel.bytes_read for kernel in kernels) / 1e9:.3f}",
        f"{sum(kernel.bytes_written for kernel in kernels) / 1e9:.3f}",
        # The published kernels choose their blocks by a search on the GPU.
        f"{requested / 1e9:.3f}" if algorithm == "ours" else "-",
        f"{products / 1e9:.1f}",
        f"{sum(kernel.vector_ops for kernel in kernels) / 1e9:.2f}",
        f"{flops(kernels) / bytes_moved(kernels):.0f}",
    ]


def _summary_table(algorithms: dict[str, list[Kernel]], directions: list[Direction]) -> Table:
    table = _table(" + ".join(directions), "GB", "/ fewest", "GFLOP", "/ fewest", *_devices())
    fewest = algorithms["fewest"]
    for name, kernels in algorithms.items():
        table.add_row(
            name,
            f"{bytes_moved(kernels) / 1e9:.3f}",
            f"{bytes_moved(kernels) / bytes_moved(fewest):.2f}",
            f"{flops(kernels) / 1e9:.1f}",
            f"{flops(kernels) / flops(fewest):.2f}",
            *(f"{total_seconds(kernels, device) * 1e6:.0f}" for device in DEVICES),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=MARKDOWN)
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right", no_wrap=True)
    return table


def _devices() -> list[str]:
    return [f"{device.name.split()[0]} us" for device in DEVICES]


def _ratios(
    algorithms: dict[str, list[Kernel]],
    directions: list[Direction],
    count: Callable[[list[Kernel]], float],
) -> str:
    def ratio(wanted: list[Direction]) -> str:
        ours, theirs = (
            count([kernel for kernel in algorithms[name] if kernel.direction in wanted])
            for name in ("ours", "published")
        )
        return f"{ours / theirs:.2f}"

    parts = [f"{direction} {ratio([direction])}" for direction in directions]
    return ", ".join([*parts, f"both {ratio(directions)}"] if len(parts) == 2 else parts)


if __name__ == "__main__":
    main()
