"""What `python -m benchmarks.loader` says: a table, the arithmetic of the target, what holds."""

import functools
import json
import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.loader_results import CONFIGURATIONS
from benchmarks.machine import describe
from benchmarks.saved import Refused
from conf.cli import CONF
from model.training.files import write_atomic

PEAK = 989.4e12
"""Dense bfloat16 operations per second of an NVIDIA H100 SXM (data sheet)."""

UTILISATION = 0.4
"""Share of the peak that good trainings reach."""

TARGET = 20
MOST_SECONDS = 1
MOST_MB = 50
BUSY = 0.5
"""Load before the command from which on others must have slowed it."""

RESULTS = Path("benchmarks/results/loader.json")
DOCUMENT = Path("docs/order.md")
_BEGIN = "<!-- written by: python -m benchmarks.loader --save -->\n"
_END = "<!-- end of what was written -->\n"


@functools.cache
def operations(seq_len: int) -> tuple[float, float]:
    """Of a token in training of model=340m, three times its forward pass; and of those 6 N."""
    import torch
    from hydra import compose, initialize_config_dir

    from conf.cli import validate
    from conf.schema import TrainSettings
    from model.network import LanguageModel

    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = validate(compose("train", ["model=340m"]), TrainSettings)
    with torch.device("meta"):
        model = LanguageModel(settings.model, 32_768)
    return 3 * model.flops_per_token(seq_len), 6 * sum(p.numel() for p in model.parameters())


def consumed(seq_len: int) -> float:
    """Tokens per second that a good training of model=340m on one H100 consumes."""
    return UTILISATION * PEAK / operations(seq_len)[0]


def show(results: dict[str, Any], console: Console) -> None:
    """Prints the table, the arithmetic and whether the targets are met."""
    console.print(describe(results["machine"]), highlight=False)
    table = Table(title=_title(results), title_justify="left")
    rows = _rows(results)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "configuration" else "right")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    console.print(_arithmetic(results), highlight=False)
    for holds, what in verdicts(results):
        console.print(f"{'yes' if holds else 'NO '}  {what}", highlight=False)
    if (note := _busy(results)) is not None:
        console.print(f"note: {note}", highlight=False)


def verdicts(results: dict[str, Any]) -> list[tuple[bool, str]]:
    """Every target: whether all points meet it, and the worst of them."""
    points = results["points"]
    again = [point for point in points if point["configuration"] != "by_length_first"]
    slowest = max(point["first_batch_seconds"] for point in again or points)
    largest = max(point["anonymous_mb"] for point in points)
    rate = min(point["tokens_per_second"] for point in points)
    ratio = rate / consumed(results["settings"]["seq_len"])
    return [
        (
            slowest < MOST_SECONDS,
            f"the first batch is there within {MOST_SECONDS} s, but for the first use of "
            f"data.by_length: {slowest:.2f} s at most",
        ),
        (
            largest < MOST_MB,
            f"a process that reads rows takes less than {MOST_MB} MB: {largest:.0f} MB at most",
        ),
        (
            ratio >= TARGET,
            f"{TARGET} times what training consumes: {ratio:.0f} times at least",
        ),
    ]


def save(results: dict[str, Any], root: Path) -> None:
    """Publishes the results under `root`: the file, and what docs/order.md says of them.

    Raises:
        Refused: the document does not say where.
    """
    document = root / DOCUMENT
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise Refused(f"--save {document}: it has no lines {_BEGIN.strip()} and {_END.strip()}")
    write_atomic(root / RESULTS, json.dumps(results, indent=1) + "\n")
    write_atomic(document, before + begin + section(results) + end + after)


def section(results: dict[str, Any]) -> str:
    """The same as `show` in Markdown."""
    rows = _rows(results)
    lines = [
        _wrapped(f"{_title(results)}. {describe(results['machine'])}."),
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|---" * len(rows[0]) + "|",
        *("| " + " | ".join(row.values()) + " |" for row in rows),
        "",
        _wrapped(_arithmetic(results)),
        "",
        *(f"- {'met' if holds else '**missed**'}: {what}" for holds, what in verdicts(results)),
    ]
    if (note := _busy(results)) is not None:
        lines += ["", _wrapped(f"{note[0].upper()}{note[1:]}.")]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 104, break_on_hyphens=False)


def _title(results: dict[str, Any]) -> str:
    settings = results["settings"]
    return (
        f"{settings['tokens']:,} tokens, documents of {settings['document_tokens']:,} on average, "
        f"batches of {settings['rows']} rows of {settings['seq_len']:,}"
    )


def _rows(results: dict[str, Any]) -> list[dict[str, str]]:
    """Cells by the names of their columns."""
    consumes = consumed(results["settings"]["seq_len"])
    order = list(CONFIGURATIONS)
    return [
        {
            "configuration": CONFIGURATIONS[point["configuration"]],
            "workers": str(point["workers"]),
            "first batch (s)": f"{point['first_batch_seconds']:.2f}",
            "memory (MB)": f"{point['anonymous_mb']:.0f}",
            "M tokens/s": f"{point['tokens_per_second'] / 1e6:.1f}",
            "x training": f"{point['tokens_per_second'] / consumes:.0f}",
            "M tokens/CPU s": f"{point['tokens_per_cpu_second'] / 1e6:.1f}",
            "load before": f"{point['load']:.1f}",
        }
        for point in sorted(
            results["points"], key=lambda p: (order.index(p["configuration"]), p["workers"])
        )
    ]


def _arithmetic(results: dict[str, Any]) -> str:
    total, dense = operations(results["settings"]["seq_len"])
    rate = UTILISATION * PEAK / total
    return (
        f"A token of model=340m costs {total / 1e9:.2f} GFLOP in training ({dense / 1e9:.2f} of "
        f"them 6 N, the rest attention): an H100 ({PEAK / 1e12:,.1f} TFLOP/s) at "
        f"{UTILISATION:.0%} of its peak consumes {rate:,.0f} tokens/s, and {TARGET} times that are "
        f"{TARGET * rate:,.0f}."
    )


def _busy(results: dict[str, Any]) -> str | None:
    highest = max(point["load"] for point in results["points"])
    if highest < BUSY:
        return None
    return (
        f"others used the machine (load before the command {highest:.1f}): seconds and "
        "tokens/s are worse than on a quiet one, tokens per CPU second hardly"
    )
