"""Building a model from a run's checkpoint, for generation, evaluation and new runs."""

from pathlib import Path
from typing import Any

import torch

from conf.cli import check, override
from model.config import ModelSettings
from model.network import LanguageModel
from model.training.architecture import canonical, fitted_state
from model.training.checkpoint_io import check_readable, load
from model.training.checkpoints import best, latest
from model.training.run_folder import RunFolder

_PREFIX = "model."  # where the training module keeps the network


def find_checkpoint(root: str, run: str, which: str) -> tuple[RunFolder, Path]:
    """The folder of a run and one of its checkpoints.

    Args:
        which: `latest`, `best`, or the name of a file in the run's `checkpoints` folder.

    Raises:
        ValueError: no such run or checkpoint; the message lists what there is.
    """
    folder = RunFolder(Path(root) / run)
    if not folder.exists:
        found = sorted(p.parent.name for p in Path(root).glob("*/config.yaml"))
        raise ValueError(
            f"there is no run {run!r} in {root}/; runs there: {', '.join(found) or 'none'}. "
            f"Train one: python train.py {override('run.name', run)}"
            + (f" {override('run.root', root)}" if root != "runs" else "")
        )
    if which == "latest":
        path = latest(folder.checkpoints)
    elif which == "best":
        path = best(folder.checkpoints)
    else:
        path = folder.checkpoints / which if Path(which).name == which else None
    if path is None or not path.is_file():
        found = sorted(p.name for p in folder.checkpoints.glob("step-*.ckpt"))
        raise ValueError(
            f"run {run!r} has no checkpoint {which!r}; checkpoints there: "
            f"{', '.join(found) or 'none yet'}"
            f"{'; also latest' if found else ''}{', best' if best(folder.checkpoints) else ''}"
        )
    return folder, path


def load_model(path: Path, device: torch.device) -> tuple[LanguageModel, dict[str, Any]]:
    """The network of a checkpoint in evaluation mode, and the checkpoint's other contents."""
    checkpoint = load(path)
    settings = check(checkpoint["model_config"], ModelSettings)
    weights = network_weights(checkpoint)
    model = LanguageModel(settings, len(weights["embedding.weight"]))
    model.load_state_dict(weights)
    return model.to(device).eval(), checkpoint


def network_weights(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The network's own part of a checkpoint's tensors, under the network's names."""
    names = {name: canonical(name) for name in checkpoint["state_dict"]}
    return {
        short.removeprefix(_PREFIX): checkpoint["state_dict"][name]
        for name, short in names.items()
        if short.startswith(_PREFIX)
    }


def load_weights(model: LanguageModel, source: str, root: str) -> None:
    """Starts `model` from the weights of another run; `source` as for `checkpoint_of`.

    Raises:
        ValueError: there is no such checkpoint, or it is of another architecture.
    """
    checkpoint = load(checkpoint_of(source, root))
    checkpoint["state_dict"] = network_weights(checkpoint)
    model.load_state_dict(fitted_state(model, checkpoint, model.settings.model_dump(mode="json")))


def checkpoint_of(source: str, root: str) -> Path:
    """The checkpoint that `run.init_from` names: a run in `root`, a run's folder, or a file.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    path = Path(source)
    if path.is_file():
        check_readable(path)
        return path
    parent, name = (str(path.parent), path.name) if path.is_dir() else (root, source)
    try:
        return find_checkpoint(parent, name, "latest")[1]
    except ValueError as error:
        raise ValueError(f"run.init_from={source}: {error}") from error
