"""Refuses what cannot fit into memory before anything is built. What passes may still not fit."""

import os

import torch

from model.network import LanguageModel
from model.training.stages import Stage

_BYTES = 4  # float32, in which weights are kept whatever the precision


def check_memory(model: LanguageModel, stage: Stage, device: torch.device) -> None:
    """Compares the least that training needs with the whole memory of the machine and the device.

    Args:
        model: on the meta device.
        stage: what is trained at once.

    Raises:
        ValueError: which settings to lower.
    """
    parameters = model.num_parameters()
    size = f"a model of {parameters:,} parameters"
    smaller = "lower model.d_model, model.ffn_dim, the number of layers or tokenizer.vocab_size"
    # It is built on the host. Training keeps a gradient and at least one running mean with it.
    _refuse(size, _BYTES * parameters, _host_bytes(), "this machine", smaller)
    available, where = _host_bytes(), "this machine"
    if device.type == "cuda":
        available, where = torch.cuda.get_device_properties(device).total_memory, "the GPU"
    weights = 3 * _BYTES * parameters
    _refuse(f"training {size}", weights, available, where, smaller)
    rows = min(stage.micro_batch_rows or stage.rows, stage.rows)
    # The backward pass needs the residual stream at the input of every block.
    stream = _BYTES * rows * stage.seq_len * model.settings.d_model * len(model.blocks)
    _refuse(
        f"a forward pass over {rows:,} rows of seq_len={stage.seq_len:,} tokens",
        weights + stream,
        available,
        where,
        f"give trainer.micro_batch_rows={max(1, rows // 2)} or less (a stage has its own), or "
        "lower seq_len",
    )


def _refuse(what: str, needed: int, available: int, where: str, advice: str) -> None:
    if needed > available:
        raise ValueError(
            f"{what} needs at least {needed / 1e9:,.1f} GB of memory, and {where} has "
            f"{available / 1e9:,.1f} GB: {advice}"
        )


def _host_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
