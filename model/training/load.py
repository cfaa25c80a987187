"""Building a model from a run's checkpoint, for generation, evaluation and new runs."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from conf.cli import override
from model.config import ModelSettings
from model.network import LanguageModel
from model.pattern import expand, used_names
from model.training.architecture import canonical, fitted_state
from model.training.checkpoint_io import check_readable, damage, load
from model.training.checkpoints import best, files, latest
from model.training.run_folder import RunFolder, is_run_name, read_saved

_PREFIX = "model."  # where the training module keeps the network


def find_checkpoint(root: str, run: str, which: str) -> tuple[RunFolder, Path]:
    """The folder of a run and one of its checkpoints.

    Args:
        which: `latest`, `best`, or the name of a file in the run's `checkpoints` folder.

    Raises:
        ValueError: no such run or checkpoint; the message lists what there is.
    """
    folder = existing_run(root, run)
    if which == "latest":
        path = latest(folder.checkpoints)
    elif which == "best":
        path = best(folder.checkpoints)
    else:
        path = folder.checkpoints / which if Path(which).name == which else None
    if path is None or not path.is_file():
        problems = {file.name: damage(file) for file in files(folder.checkpoints)}
        found = [f"{name} ({problem})" if problem else name for name, problem in problems.items()]
        raise ValueError(
            f"run {run!r} has no checkpoint {which!r} that can be read; checkpoints there: "
            f"{', '.join(found) or 'none yet'}"
            f"{'; also latest' if None in problems.values() else ''}"
            f"{', best' if best(folder.checkpoints) else ''}"
        )
    return folder, path


def existing_run(root: str, run: str) -> RunFolder:
    """The folder of the run with this name among those in `root`.

    Raises:
        ValueError: there is none; the message lists the runs that there are.
    """
    path = Path(root) / run
    if is_run_name(run) and RunFolder(path).exists:
        return RunFolder(path)
    found = sorted(p.parent.name for p in Path(root).glob("*/config.yaml"))
    there = f"runs in {root}/: {', '.join(found) or 'none'}"
    if (path / "config.yaml").is_file():
        path = Path(os.path.abspath(path))
        raise ValueError(
            f"{run!r} is a path, not the name of a run; for that run the name is {path.name} and "
            f"the folder of runs is {path.parent}"
        )
    if not is_run_name(run):
        raise ValueError(f"{run!r} is no name of a run; {there}")
    if path.is_dir():
        raise ValueError(f"{path} holds no run (no config.yaml); {there}")
    command = f"python train.py {override('run.name', run)}"
    if root != "runs":
        command += f" {override('run.root', root)}"
    raise ValueError(f"there is no run {run!r}; {there}. Train one: {command}")


def load_model(path: Path, device: torch.device) -> tuple[LanguageModel, dict[str, Any]]:
    """The network of a checkpoint in evaluation mode, and the checkpoint's other contents.

    Raises:
        ValueError: the checkpoint is damaged, or other code wrote it.
    """
    checkpoint = load(path)
    settings = saved_settings(checkpoint, path)
    weights = network_weights(checkpoint)
    try:
        model = LanguageModel(settings, len(weights["embedding.weight"]))
        model.load_state_dict(weights)
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the tensors of {path} are not those that this code makes of its settings: {reason}"
        ) from error
    return model.to(device).eval(), checkpoint


def saved_settings(checkpoint: dict[str, Any], path: Path) -> ModelSettings:
    """The configuration of a checkpoint's network; `path` is where the checkpoint lies.

    Raises:
        ValueError: other code wrote it.
    """
    return read_saved(checkpoint["model_config"], ModelSettings, path, run_of(path))


def run_of(checkpoint: Path) -> RunFolder | None:
    """The run that a checkpoint's file belongs to, None for a file that lies elsewhere."""
    path = Path(os.path.abspath(checkpoint)).parent
    if path.name != "checkpoints" or not is_run_name(path.parent.name):
        return None
    folder = RunFolder(path.parent)
    return folder if folder.exists else None


def network_weights(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The network's own part of a checkpoint's tensors, under the network's names."""
    names = {name: canonical(name) for name in checkpoint["state_dict"]}
    return {
        short.removeprefix(_PREFIX): checkpoint["state_dict"][name]
        for name, short in names.items()
        if short.startswith(_PREFIX)
    }


def load_weights(model: LanguageModel, path: Path) -> None:
    """Starts `model` from the weights of the checkpoint at `path`.

    Raises:
        ValueError: it is damaged, of another architecture or of another vocabulary; or a seed is
            given for random features that come from it.
    """
    checkpoint = load(path)
    weights = network_weights(checkpoint)
    vocab_size = len(weights["embedding.weight"])
    if vocab_size != model.vocab_size:
        raise ValueError(
            f"the checkpoint {path} knows {vocab_size:,} token ids, and the data set's tokenizer "
            f"has {model.vocab_size:,}: it was trained with another tokenizer. Give that one, "
            "tokenizer.path=FILE (a run keeps it as tokenizer.model or tokenizer.json)"
        )
    saved = saved_settings(checkpoint, path)
    used = used_names(saved.layers, model.settings.layers)
    checkpoint = {"state_dict": weights, "model_config": _with_mixers(saved, used)}
    given = _with_mixers(model.settings, used)
    state = fitted_state(model, checkpoint, given)
    _check_projection_seeds(model.settings, saved)
    model.load_state_dict(state)
    model.forget_draws()


def _check_projection_seeds(settings: ModelSettings, saved: ModelSettings) -> None:
    blocks = zip(expand(settings.layers), expand(saved.layers), strict=True)
    for name, source in {pair for block in blocks for pair in zip(*block, strict=True)}:
        mixer, before = settings.mixers[name], saved.mixers[source]
        seed, kept = (getattr(m, "projection_seed", None) or 0 for m in (mixer, before))
        if seed != kept and mixer.redraw_every is None:
            raise ValueError(
                f"model.mixers.{name}.projection_seed={seed} is not read with run.init_from and "
                f"redraw_every=null: the random features come from that checkpoint, where the seed "
                f"is {kept}, and stay. Type model.mixers.{name}.projection_seed={kept}, or give "
                f"model.mixers.{name}.redraw_every, such as 1000, to draw others from the start"
            )


def _with_mixers(settings: ModelSettings, names: Collection[str]) -> dict[str, Any]:
    """Plain settings with these mixers alone: what others say makes no difference."""
    values = settings.model_dump(mode="json")
    return values | {"mixers": {n: value for n, value in values["mixers"].items() if n in names}}


def checkpoint_of(source: str, root: str) -> Path:
    """The checkpoint that `run.init_from` names: a run in `root`, a run's folder, or a file.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    given, path = source, Path(source)
    try:
        if not (is_run_name(source) and RunFolder.named(root, source).exists):
            if path.is_file():
                check_readable(path)
                return path
            if path.is_dir():
                path = Path(os.path.abspath(path))
                root, source = str(path.parent), path.name
        return find_checkpoint(root, source, "latest")[1]
    except ValueError as error:
        raise ValueError(f"run.init_from={given}: {error}") from error
