"""The table printed when training starts: what every block is, holds and costs."""

from rich.table import Table

from model.network import LanguageModel


def layer_table(model: LanguageModel, length: int) -> Table:
    """One row per block: mixer, parameters, decoding state and forward FLOPs per token.

    Args:
        length: tokens per row, which softmax attention's state and cost depend on.
    """
    table = Table(title=f"layers (state and FLOPs at {length:,} tokens)", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("mixer")
    for name in ("parameters", "state bytes / row", "FLOPs / token"):
        table.add_column(name, justify="right")

    embedding = model.embedding.weight.numel()
    table.add_row("", "embedding", f"{embedding:,}", "", "")
    for index, block in enumerate(model.blocks):
        parameters = sum(p.numel() for p in block.parameters())
        ffn = 2 * sum(p.numel() for p in block.ffn.parameters())
        table.add_row(
            str(index),
            block.name,
            f"{parameters:,}",
            f"{block.mixer.state_bytes(length):,}",
            f"{block.mixer.flops_per_token(length) + ffn:,.0f}",
        )
    head = model.head.weight.numel()
    held = "tied" if model.settings.tie_embeddings else f"{head:,}"
    table.add_row("", "head", held, "", f"{2 * head:,}", end_section=True)
    table.add_row(
        "",
        "total",
        f"{model.num_parameters():,}",
        f"{sum(block.mixer.state_bytes(length) for block in model.blocks):,}",
        f"{model.flops_per_token(length):,.0f}",
    )
    return table
