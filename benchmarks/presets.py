"""The mixer presets of conf/mixer/, without what a model's file sets for its own."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter

from conf.cli import CONF
from model.config import MixerSettings

# Built once: it takes longer than all it is used for, and hides a Ctrl-C in an error of its own.
_SETTINGS = TypeAdapter(MixerSettings)
# A gated convolution is no attention: it has no heads, and costs the same at any distance.
PRESETS = tuple(sorted({path.stem for path in (CONF / "mixer").glob("*.yaml")} - {"conv"}))


def preset(name: str, **changes: Any) -> MixerSettings:
    """The settings of `PRESETS` entry `name`, with `changes` to single keys.

    Raises:
        ValueError: the changed settings make no sense.
    """
    return _SETTINGS.validate_python({**_values(name), **changes})


@cache
def _values(name: str) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose(f"mixer/{name}"))["mixer"]
