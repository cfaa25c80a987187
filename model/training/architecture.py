"""Whether a checkpoint fits a model, and under which names its tensors go there.

Saved names carry no prefix of torch.compile, so that a checkpoint of a compiled module loads into a
plain one and the other way round. (Lightning saves the module inside a DDP wrapper, not the
wrapper, so DDP adds no prefix.)
"""

from typing import Any

import torch
from torch import nn

from model.training.differences import changed, saved_values


def fitted_state(
    module: nn.Module, checkpoint: dict[str, Any], model_config: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors under the names of `module`, to be loaded with strict=True.

    Raises:
        ValueError: the checkpoint does not fit, see `check_architecture`.
    """
    check_architecture(module, checkpoint, model_config)
    own_names = {canonical(name): name for name in module.state_dict()}
    return {own_names[name]: value for name, value in checkpoint["state_dict"].items()}


def check_architecture(
    module: nn.Module, checkpoint: dict[str, Any], model_config: dict[str, Any]
) -> None:
    """Refuses a checkpoint whose parameters do not fit `module`.

    Args:
        module: the module to load into.
        checkpoint: as `checkpoint_io.load` returns it.
        model_config: the configuration that `module` was built from.

    Raises:
        ValueError: names and shapes that differ (the first few and how many), the configuration
            keys that differ, and what to type.
    """
    own = {canonical(name): tuple(value.shape) for name, value in module.state_dict().items()}
    saved = {name: tuple(value.shape) for name, value in checkpoint["state_dict"].items()}
    lines = [f"  {name}: only in the checkpoint" for name in saved if name not in own]
    lines += [f"  {name}: only in this model" for name in own if name not in saved]
    lines += [
        f"  {name}: {list(saved[name])} in the checkpoint, {list(shape)} in this model"
        for name, shape in own.items()
        if name in saved and saved[name] != shape
    ]
    if not lines:
        return
    shown = lines[:5]
    if len(lines) > len(shown):
        shown.append(f"  ... and {len(lines) - len(shown)} more")
    keys = changed(checkpoint.get("model_config", {}), model_config)
    keys = [(f"model.{key}", old, new) for key, old, new in keys]
    shown += [f"  {key}: checkpoint {old!r}, given {new!r}" for key, old, new in keys]
    advice = (
        f"Give the checkpoint's values: {saved_values(keys)}"
        if keys
        else "Use the model it came from"
    )
    raise ValueError(
        f"the checkpoint is of another architecture, {len(lines)} of its tensors differ:\n"
        + "\n".join(shown)
        + f"\n{advice}, or start afresh under another run.name without this checkpoint."
    )


def canonical(name: str) -> str:
    """A tensor's name without the part that torch.compile inserts."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
