"""Validation of a model outside of Lightning: the loss over a whole split."""

import sys
from collections.abc import Iterable

import torch
from torch import Tensor
from tqdm import tqdm

from model.network import LanguageModel
from model.training.device import autocast
from model.training.loss import IGNORED, chunked_cross_entropy


@torch.inference_mode()
def summed_loss(
    model: LanguageModel,
    batches: Iterable[dict[str, Tensor]],
    count: int,
    device: torch.device,
    precision: str,
    chunk: int = 1024,
) -> tuple[float, int]:
    """(sum of the cross-entropy in nats, number of targets) over all `batches`.

    Args:
        batches: dicts of int64 [rows, T]: tokens, labels, segments.
        count: how many there are, for the progress bar.
        precision: as the trainer's, `32-true` or `bf16-mixed`.
        chunk: tokens whose logits exist at a time.
    """
    was_training = model.training
    model.eval()
    nats, targets = 0.0, 0
    for batch in tqdm(batches, "validation", count, leave=False, disable=not sys.stderr.isatty()):
        tokens, labels, segments = (batch[n].to(device) for n in ("tokens", "labels", "segments"))
        with autocast(precision, device):
            hidden = model.hidden(tokens, segments).flatten(0, 1)
            total, _ = chunked_cross_entropy(hidden, model.head.weight, labels.flatten(), chunk)
        nats += float(total)
        targets += int((labels != IGNORED).sum())
    model.train(was_training)
    return nats, targets
