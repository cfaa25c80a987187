"""Tables, targets and the picture of `python -m benchmarks.kernels`, from its raw numbers."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.kernel_calls import BRAID, FLA, SOFTMAX
from benchmarks.kernel_cases import OPS, TARGET_LENGTH, TARGET_WIDTH

_SHAPE = ("op", "rows", "length", "heads", "width", "packed")


@dataclass(frozen=True)
class Row:
    """Medians of one case and direction, in milliseconds by library."""

    op: str
    rows: int
    length: int
    heads: int
    width: int
    packed: bool
    direction: str
    milliseconds: dict[str, float]

    @property
    def softmax(self) -> str | None:
        """The fastest softmax attention that ran."""
        ran = [name for name in SOFTMAX if name in self.milliseconds]
        return min(ran, key=self.milliseconds.__getitem__, default=None)

    def ratio(self, library: str | None) -> float | None:
        """Braid's time over that of `library`; None where one of them has none."""
        if BRAID not in self.milliseconds or library not in self.milliseconds:
            return None
        return self.milliseconds[BRAID] / self.milliseconds[library]


@dataclass(frozen=True)
class Target:
    """A promise about one number; `measured` is None where the run did not measure it."""

    text: str
    allowed: float
    measured: float | None
    where: str = ""

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        return "met" if self.measured <= self.allowed else "MISSED"


def rows(results: dict) -> list[Row]:
    """One per case and direction, in the order of measurement."""
    found: dict[tuple, dict[str, float]] = {}
    for entry in results["times"]:
        key = *(entry[name] for name in _SHAPE), entry["direction"]
        found.setdefault(key, {})[entry["library"]] = statistics.median(entry["milliseconds"])
    return [Row(*key, milliseconds) for key, milliseconds in found.items()]


def targets(results: dict) -> list[Target]:
    """What Braid aims at on an H200 with bfloat16, and what this run measured."""
    measured = rows(results)

    def find(op: str, width: int, direction: str) -> Row | None:
        wanted = (op, TARGET_LENGTH, width, False, direction)
        for row in measured:
            if (row.op, row.length, row.width, row.packed, row.direction) == wanted:
                return row
        return None

    gla = find("gla", TARGET_WIDTH, "training")
    both, alone = find("retnet", 256, "training"), find("retnet", 256, "forward")
    backward = None
    if both and alone and BRAID in both.milliseconds and BRAID in alone.milliseconds:
        forward = alone.milliseconds[BRAID]
        backward = (both.milliseconds[BRAID] - forward) / forward
    slowest, where = None, ""
    for row in measured:
        if row.direction == "training" and row.length >= 2048 and not row.packed:
            ratio = row.ratio(row.softmax)
            if ratio is not None and (slowest is None or ratio > slowest):
                slowest, where = ratio, f"{row.op} T={row.length} D={row.width}"
    steps = {step["library"]: step["seconds"] for step in results["first_steps"]}
    return [
        Target(
            f"GLA forward + backward / FLA, B=2 T={TARGET_LENGTH} H=16 D={TARGET_WIDTH}",
            0.8,
            gla.ratio(FLA) if gla else None,
        ),
        Target(f"RetNet backward / its forward, T={TARGET_LENGTH} D=256", 5.0, backward),
        Target("forward + backward / softmax attention, worst from T=2048", 1.0, slowest, where),
        Target("first training step from a cold cache, GLA, seconds", 30.0, steps.get(BRAID)),
        Target("memory of states in training / FLA, RetNet", 0.25, memory_ratio(results, "retnet")),
    ]


def memory_ratio(results: dict, op: str) -> float | None:
    """With one decay per head, all that a step holds beyond inputs and results are states."""
    held = {
        row["library"]: row["bytes"]
        for row in results["memory"]
        if row["op"] == op and row["direction"] == "training"
    }
    return held[BRAID] / held[FLA] if BRAID in held and held.get(FLA) else None


def tables(results: dict) -> Iterator[Table]:
    yield _times(results)
    if results["memory"]:
        yield _memory(results)
    if results["first_steps"]:
        table = Table("library", "op", "seconds", title="First training step, cold cache")
        for step in results["first_steps"]:
            table.add_row(step["library"], step["op"], f"{step['seconds']:.1f}")
        yield table
    table = Table("target", "allowed", "measured", "", "where", title="Targets (H200, bfloat16)")
    for target in targets(results):
        shown = "-" if target.measured is None else f"{target.measured:.3g}"
        table.add_row(target.text, f"<= {target.allowed:g}", shown, target.verdict, target.where)
    yield table


def show(results: dict, console: Console) -> None:
    """Everything but the picture."""
    for table in tables(results):
        console.print(table)
    for note in results["notes"]:
        console.print(f"note: {note}", markup=False, highlight=False)


def _times(results: dict) -> Table:
    machine = results["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items())
    table = Table(
        "op", "D", "T", "B", "H", "packed", "pass", "Braid ms", "FLA ms", "Braid / FLA",
        "softmax ms", "Braid / softmax",
        title=escape(f"{machine['gpu']}; {versions}; bfloat16, medians"),
    )  # fmt: skip
    ordered = sorted(
        rows(results), key=lambda r: (list(OPS).index(r.op), r.width, r.packed, r.length)
    )
    for row in ordered:
        softmax = row.softmax
        table.add_row(
            row.op, str(row.width), str(row.length), str(row.rows), str(row.heads),
            "yes" if row.packed else "", row.direction,
            _number(row.milliseconds.get(BRAID)), _number(row.milliseconds.get(FLA)),
            _number(row.ratio(FLA)),
            f"{_number(row.milliseconds[softmax])} {softmax}" if softmax else "-",
            _number(row.ratio(softmax)),
        )  # fmt: skip
    return table


def _memory(results: dict) -> Table:
    title = f"MiB beyond inputs and results, T={TARGET_LENGTH} D={TARGET_WIDTH}"
    table = Table("op", "pass", "Braid", "FLA", "Braid / FLA", title=title)
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in results["memory"]:
        found.setdefault((row["op"], row["direction"]), {})[row["library"]] = row["bytes"]
    for (op, direction), held in found.items():
        ours, theirs = held.get(BRAID), held.get(FLA)
        cells = [f"{held[name] / 2**20:.1f}" if name in held else "-" for name in (BRAID, FLA)]
        ratio = ours / theirs if ours is not None and theirs else None
        table.add_row(op, direction, *cells, _number(ratio))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def draw(results: dict, path: Path) -> None:
    """Nanoseconds a token of forward + backward against length, one panel per operator."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    training = [row for row in rows(results) if row.direction == "training"]
    ops = [op for op in OPS if any(row.op == op for row in training)]
    figure, axes = plt.subplots(
        1, max(1, len(ops)), figsize=(max(8, 4 * len(ops)), 4.5), sharey=True, squeeze=False
    )
    for panel, op in zip(axes[0], ops, strict=False):
        of_op = [row for row in training if row.op == op]
        lengths = sorted({row.length for row in of_op})
        widths = {row.width for row in of_op}
        width = TARGET_WIDTH if TARGET_WIDTH in widths else min(widths)
        for packed in (False, True):
            for library, points in _curves(of_op, width, packed).items():
                panel.loglog(
                    *zip(*sorted(points), strict=True),
                    marker="s" if packed else "o",
                    markersize=6 if packed else 4,
                    markerfacecolor="none" if packed else None,
                    linestyle="--" if packed else "-",
                    color={BRAID: "C0", FLA: "C1"}.get(library, "C2"),
                    label=f"{library}, packed" if packed else library,
                )  # fmt: skip
        panel.set_title(f"{op}, D={width}")
        panel.set_xlabel("tokens a row")
        panel.set_xticks(lengths, [f"{length / 1024:g}k" for length in lengths])
        panel.xaxis.minorticks_off()
        panel.grid(True, alpha=0.3)
    axes[0][0].set_ylabel("ns a token, forward + backward")
    labels = {
        label: line
        for panel in axes[0]
        for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.suptitle(results["machine"]["gpu"], fontsize=10)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.legend(labels.values(), labels.keys(), loc="lower center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _curves(of_op: list[Row], width: int, packed: bool) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in of_op:
        if (row.width, row.packed) != (width, packed):
            continue
        shown = {BRAID: BRAID, FLA: FLA, row.softmax: "softmax attention"}
        for library, name in shown.items():
            if library in row.milliseconds:
                nanoseconds = row.milliseconds[library] * 1e6 / (row.rows * row.length)
                curves.setdefault(name, []).append((row.length, nanoseconds))
    return curves
