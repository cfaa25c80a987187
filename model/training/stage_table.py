"""The table of the stages of a run, printed when training starts."""

from collections.abc import Sequence

from rich.table import Table

from model.training.stages import Stage


def stage_table(stages: Sequence[Stage]) -> Table:
    """One row per stage."""
    table = Table(title="stages", title_justify="left")
    for name in ("#", "steps", "until tokens", "row", "batch", "rows at once", "rope base"):
        table.add_column(name, justify="right")
    has_weights = any(stage.weights is not None for stage in stages)
    if has_weights:
        table.add_column("weights")
    for number, stage in enumerate(stages):
        rows = stage.micro_batch_rows or stage.rows
        base = "of model.mixers" if stage.rope_base is None else f"{stage.rope_base:,.0f}"
        cells = [
            str(number),
            f"{stage.steps:,}",
            f"{stage.first_tokens + stage.steps * stage.batch_tokens:,}",
            f"{stage.seq_len:,}",
            f"{stage.batch_tokens:,}",
            f"{rows:,}",
            base,
        ]
        if has_weights:
            given = stage.weights
            cells.append(
                "of the run"
                if given is None
                else ", ".join(f"{name} {weight:g}" for name, weight in given.items())
            )
        table.add_row(*cells)
    return table
