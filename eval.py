"""Validation loss of a trained model: python eval.py run=quickstart

The whole held-out text of the run's data set, in nats per token and bits per byte, beside two
simple compressors on the same text. Of a mixture, every source and their mean by weight.
"""

from typing import TYPE_CHECKING, Any

from conf.cli import hydra_main
from conf.schema import EvalSettings, TrainSettings
from data.config import DataConfig

if TYPE_CHECKING:
    from data.sets import Sets
    from model.network import LanguageModel


@hydra_main("eval", EvalSettings, only_prints=True)
def main(settings: EvalSettings) -> None:
    from rich import print as rich_print
    from rich.table import Table

    from data.binding import bound
    from data.sets import weights_of
    from model.training.device import pick_device
    from model.training.load import find_checkpoint, load_model

    device = pick_device(settings.device)
    folder, path = find_checkpoint(settings.root, settings.run, settings.checkpoint)
    config = folder.config(TrainSettings)
    data = DataConfig.model_validate(config["data"])
    sets = bound(folder.path, config)
    model, _ = load_model(path, device)
    scores = validation_scores(
        model, sets, data, settings.batch_rows, config["trainer"]["precision"]
    )
    held_out = [prepared.index.validation for prepared in sets.values()]
    size, documents = (
        sum(getattr(split, key) for split in held_out) for key in ("bytes", "documents")
    )
    table = Table(title=f"{path}: {size:,} bytes in {documents:,} documents", title_justify="left")
    table.add_column("bits per byte of held-out text")
    for column in ("model", "gzip -9, each document", "token frequencies"):
        table.add_column(column, justify="right")
    names = [name for name in sets if name]
    for name in names:
        table.add_row(name, *_cells(scores, f"{name}_"))
    weights = weights_of(data, sets)
    total = sum(weights.values())
    shares = ", ".join(f"{name} {float(weights[name] / total):.2f}" for name in names)
    table.add_row(f"mean by weight ({shares})" if names else "all", *_cells(scores, ""))
    rich_print(table)
    print(f"{scores['val_nats_per_token']:.4f} nats per token")


def validation_scores(
    model: "LanguageModel", sets: "Sets", data: DataConfig, rows: int, precision: str
) -> dict[str, Any]:
    """Loss on the whole held-out text and the two baselines.

    Args:
        sets: the data sets by the names of their sources.
        data: their settings.
        rows: rows per forward pass.
        precision: `32-true` or `bf16-mixed`.

    Returns:
        val_nats_per_token, and in bits per byte of text val_, unigram_ and gzip_bits_per_byte. Of a
        mixture these are means by the weights of its sources, and each source has its own, such as
        val_web_bits_per_byte.
    """
    from data.module import ValidationBatches
    from data.packed import PackedSplit
    from data.report import baselines
    from data.sets import validation_sets
    from model.training.evaluate import summed_loss
    from model.training.module import ValidationSet, validation_metrics

    device = model.embedding.weight.device
    held_out = [ValidationSet(*one) for one in validation_sets(data, sets)]
    losses = []
    for folder, index in sets.values():
        split = PackedSplit(folder, "validation", data.seq_len, index)
        batches = ValidationBatches(split, rows, 0, 1)
        each = (batches[i] for i in range(len(batches)))
        nats, targets = summed_loss(model, each, len(batches), device, precision)
        losses.append(nats / targets)
    scores: dict[str, Any] = validation_metrics(losses, held_out)
    both = [baselines(prepared.index) for prepared in sets.values()]
    weights = [one.weight for one in held_out]
    for number, key in enumerate(("gzip", "unigram")):
        values = [pair[number] for pair in both]
        weighted = sum(w * value for w, value in zip(weights, values, strict=True))
        scores[f"{key}_bits_per_byte"] = weighted / sum(weights)
        if "" not in sets:
            named = zip(sets, values, strict=True)
            scores |= {f"{key}_{name}_bits_per_byte": value for name, value in named}
    return scores


def _cells(scores: dict[str, Any], source: str) -> list[str]:
    return [f"{scores[f'{key}_{source}bits_per_byte']:.4f}" for key in ("val", "gzip", "unigram")]


if __name__ == "__main__":
    main()
