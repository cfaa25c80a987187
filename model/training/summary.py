"""The closing summary of a run: summary.json, and the same in the terminal with what to do next."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from model.training.files import write_atomic
from model.training.progress import duration
from model.training.run_folder import RunFolder


def summarize(
    folder: RunFolder,
    *,
    val_nats_per_token: float,
    val_bits_per_byte: float,
    unigram_bits_per_byte: float,
    gzip_bits_per_byte: float,
    train_seconds: float,
    tokens: int,
    parameters: int,
    steps: int,
    files: list[Path],
    next_commands: list[str],
    console: Console | None = None,
    **of_sources: float,
) -> dict[str, Any]:
    """Writes summary.json and prints the summary.

    Args:
        folder: the run's.
        train_seconds: summed over all starts of the run, without validation.
        tokens: consumed over all starts; tokens per second is their ratio.
        steps: optimizer steps done.
        files: what to look at, such as the newest checkpoint and the plots.
        next_commands: what to type next.
        console: where to print; None: standard output.
        of_sources: the scores of each source of a mixture, such as val_web_bits_per_byte.

    Returns:
        what summary.json holds.
    """
    values = {
        "run": folder.name,
        "steps": steps,
        "tokens": tokens,
        "parameters": parameters,
        "train_seconds": round(train_seconds, 3),
        # 0 when a run ends before its first step.
        "tokens_per_second": round(tokens / train_seconds, 1) if train_seconds else 0.0,
        "val_nats_per_token": val_nats_per_token,
        "val_bits_per_byte": val_bits_per_byte,
        "unigram_bits_per_byte": unigram_bits_per_byte,
        "gzip_bits_per_byte": gzip_bits_per_byte,
        **of_sources,
        "files": [str(path) for path in [*files, folder.metrics_file, folder.summary_file]],
    }
    write_atomic(folder.summary_file, json.dumps(values, indent=2) + "\n")
    _print(values, next_commands, console or Console(highlight=False, soft_wrap=True))
    return values


def _print(values: dict[str, Any], next_commands: list[str], console: Console) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("validation", f"{values['val_nats_per_token']:.4f}", "nats per token")
    table.add_row("", f"{values['val_bits_per_byte']:.4f}", "bits per byte")
    table.add_row("  unigram", f"{values['unigram_bits_per_byte']:.4f}", "bits per byte")
    table.add_row("  gzip", f"{values['gzip_bits_per_byte']:.4f}", "bits per byte")
    for key, value in values.items():
        if key.startswith("val_") and key.endswith("_bits_per_byte") and key != "val_bits_per_byte":
            source = key.removeprefix("val_").removesuffix("_bits_per_byte")
            table.add_row(f"  {source}", f"{value:.4f}", "bits per byte")
    table.add_row("training", duration(values["train_seconds"]), "")
    table.add_row("", f"{values['tokens']:,}", f"tokens in {values['steps']:,} steps")
    table.add_row("", f"{values['tokens_per_second']:,.0f}", "tokens per second")
    table.add_row("model", f"{values['parameters']:,}", "parameters")
    console.print(f"\nRun {values['run']} is finished", style="bold")
    console.print(table)
    console.print("\nFiles", style="bold")
    for path in values["files"]:
        console.print(f"  {path}", markup=False)
    if next_commands:
        console.print("\nNext", style="bold")
        for command in next_commands:
            console.print(f"  {command}", markup=False)
