"""How often a run reads each of its sources: told before it starts, as nothing wraps silently."""

from rich.table import Table

from data.rows import TrainRows
from data.sets import Sets

MOST_EPOCHS = 4
"""Up to about so many epochs, repeated text is worth nearly as much as new text (Muennighoff et
al., 2023, Scaling data-constrained language models)."""


def epoch_table(rows: TrainRows, sets: Sets, steps: int) -> Table:
    """One line per source, and per bucket of it, with what `steps` optimizer steps read."""
    table = Table(title=f"training text of {steps:,} steps", title_justify="left")
    table.add_column("source")
    if rows.bucket_names is not None:
        table.add_column("tokens per document")
    for name in ("documents", "tokens", "read", "share", "epochs"):
        table.add_column(name, justify="right")
    amounts = rows.reading.amounts(steps)
    total = sum(amount.tokens for source in amounts for amount in source)
    for name, source in zip(rows.names, amounts, strict=True):
        train = sets[name].index.train
        of_source = name or sets[name].folder.name
        for bucket, amount in enumerate(source):
            cells = [of_source]
            held, documents = f"{train.tokens:,}", f"{train.documents:,}"
            if rows.bucket_names is not None:
                cells.append(rows.bucket_names[bucket])
                documents = ""
                held = f"{rows.tokens_in(name, bucket):,}"
            cells += [documents, held, f"{amount.tokens:,}", f"{amount.tokens / total:.2%}"]
            table.add_row(*cells, f"{amount.epochs:.2f}")
    return table


def repeats(rows: TrainRows, steps: int) -> list[str]:
    """A note for every source or bucket that is read more than once, a warning beyond 4 times."""
    lines = []
    for name, source in zip(rows.names, rows.reading.amounts(steps), strict=True):
        for bucket, amount in enumerate(source):
            what = f"source {name}" if name else "the training text"
            if rows.bucket_names is not None:
                what += f", documents of {rows.bucket_names[bucket]} tokens,"
            if amount.epochs > MOST_EPOCHS:
                lines.append(
                    f"warning: {what} is read {amount.epochs:.1f} times; beyond {MOST_EPOCHS} "
                    "times, repeated text teaches little. Give more text, less weight or fewer "
                    "tokens (trainer.tokens)"
                )
            elif amount.epochs > 1:
                lines.append(
                    f"note: {what} is read {amount.epochs:.1f} times, in another order each time"
                )
    return lines
