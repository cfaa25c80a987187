"""Validation loss of a trained model: python eval.py run=quickstart

The whole held-out text of the run's data set, in nats per token and bits per byte, beside two
simple compressors on the same text.
"""

import math
from typing import TYPE_CHECKING, Any

from conf.cli import hydra_main
from conf.schema import EvalSettings, TrainSettings

if TYPE_CHECKING:
    from pathlib import Path

    from model.network import LanguageModel


@hydra_main("eval", EvalSettings)
def main(settings: EvalSettings) -> None:
    from rich import print as rich_print
    from rich.table import Table

    from data.binding import bound
    from model.training.device import pick_device
    from model.training.load import find_checkpoint, load_model

    device = pick_device(settings.device)
    folder, path = find_checkpoint(settings.root, settings.run, settings.checkpoint)
    config = folder.config(TrainSettings)
    data_folder, index = bound(folder.path, config)
    model, _ = load_model(path, device)
    scores = validation_scores(
        model,
        data_folder,
        config["data"]["seq_len"],
        settings.batch_rows,
        config["trainer"]["precision"],
    )
    title = f"{path}: {index.validation.bytes:,} bytes in {index.validation.documents:,} documents"
    table = Table(title=title, title_justify="left")
    table.add_column("held-out text")
    table.add_column("bits per byte", justify="right")
    table.add_row("model", f"{scores['val_bits_per_byte']:.4f}")
    table.add_row("gzip -9, each document", f"{scores['gzip_bits_per_byte']:.4f}")
    table.add_row("token frequencies", f"{scores['unigram_bits_per_byte']:.4f}")
    rich_print(table)
    print(f"{scores['val_nats_per_token']:.4f} nats per token")


def validation_scores(
    model: "LanguageModel", data_folder: "Path", seq_len: int, rows: int, precision: str
) -> dict[str, Any]:
    """Loss on the whole validation split and the two baselines.

    Args:
        rows: rows per forward pass.
        precision: `32-true` or `bf16-mixed`.

    Returns:
        val_nats_per_token, and in bits per byte of text val_, unigram_ and gzip_bits_per_byte.
    """
    from data.index import read_index
    from data.module import ValidationBatches
    from data.packed import PackedSplit
    from data.report import baselines
    from model.training.evaluate import summed_loss

    index = read_index(data_folder)
    batches = ValidationBatches(PackedSplit(data_folder, "validation", seq_len), rows, 0, 1)
    device = model.embedding.weight.device
    nats, targets = summed_loss(
        model, (batches[i] for i in range(len(batches))), len(batches), device, precision
    )
    gzip, unigram = baselines(index)
    return {
        "val_nats_per_token": nats / targets,
        "val_bits_per_byte": nats / math.log(2) / index.validation.bytes,
        "unigram_bits_per_byte": unigram,
        "gzip_bits_per_byte": gzip,
    }


if __name__ == "__main__":
    main()
