"""Composes configurations in tests as the commands do, in less time where only values are typed."""

from copy import deepcopy
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel

from conf.cli import CONF, rewrite_overrides, validate
from conf.schema import TrainSettings
from model.config import ModelSettings
from model.network import LanguageModel

FREE_TEXT = ("prompt",)

# Every mixer preset; a new one is covered by all suites when its file is added to conf/mixer/.
PRESETS = sorted(path.stem for path in (CONF / "mixer").glob("*.yaml"))


@cache
def composed(
    *overrides: str, config: str = "train", schema: type[BaseModel] = TrainSettings
) -> Any:
    """The validated settings of `python <config>.py <overrides>`."""
    return validate(composed_values(config, *overrides), schema)


def composed_values(config: str, *overrides: str) -> DictConfig:
    """What Hydra composes. Groups are composed once; values are set afterwards, as Hydra does."""
    rewritten = rewrite_overrides(list(overrides), FREE_TEXT)
    values = [override for override in rewritten if override.startswith("++")]
    groups = tuple(override for override in rewritten if not override.startswith("++"))
    cfg = deepcopy(composed_by_hydra(config, *groups))
    for given in OverridesParser.create().parse_overrides(values):
        OmegaConf.update(cfg, given.key_or_group, given.value(), merge=True, force_add=True)
    return cfg


@cache
def composed_by_hydra(config: str, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(config, list(overrides))


def presets_of(kind: str) -> list[str]:
    """The presets of one kind of mixer, such as `linear`."""
    mixers = composed().model.mixers
    return [name for name in PRESETS if mixers[name].kind == kind]


def small_model(layers: str, *overrides: str, vocab_size: int = 64) -> LanguageModel:
    """A network of width 32 with 2 heads in every mixer, and noise where training starts at 0."""
    widths = [f"model.mixers.{name}.heads=2" for name in PRESETS if name != "conv"]
    kv = [f"model.mixers.{name}.kv_heads=2" for name in ("softmax", "window", "sparse")]
    windows = [f"model.mixers.{name}.window=16" for name in ("window", "sparse", "sparse_linear")]
    settings: ModelSettings = composed(
        f"model.layers={layers}",
        "model.d_model=32",
        "model.ffn_dim=48",
        "model.init=depth_scaled",
        "model.init_std=0.2",
        "model.embedding_std=0.2",
        *widths,
        *kv,
        *windows,
        *overrides,
    ).model
    return LanguageModel(settings, vocab_size)
