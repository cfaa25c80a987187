"""A sweep (`-m`) is checked whole before its first job: the settings of every job, and that no two
jobs are the same run.

The jobs are those of Hydra's own sweeper: all combinations of the values that commas, `range` and
`glob` list. Another sweeper chooses values as it goes: each of its jobs is checked when it starts.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONF = Path(__file__).parent


def check_sweep(
    config_name: str, overrides: list[str], check: Callable[[Any], Path | None]
) -> None:
    """Checks every job of a sweep.

    Args:
        config_name: as for `conf.cli.hydra_main`.
        overrides: the command line without flags, as Hydra gets it.
        check: checks a composed configuration; returns the folder that no other job may have, if
            there is one.

    Raises:
        ValueError: what `check` raised, or two jobs share a folder; the jobs are named by what
            distinguishes them.
    """
    from hydra.errors import HydraException

    jobs: dict[Path, str] = {}
    try:
        for name, config, suggestion in _jobs(config_name, overrides):
            try:
                folder = check(config)
            except ValueError as error:
                raise ValueError(f"{name} of the sweep: {error}") from error
            if folder in jobs:
                raise ValueError(
                    f"{jobs[folder]} and {name} of the sweep would both be the run {folder}; give "
                    f"each a name of its own: run.name='{folder.name}-{suggestion}'"
                )
            if folder is not None:
                jobs[folder] = name
    except HydraException:  # Hydra composes all jobs before the first one, too, and says it itself
        return


def _jobs(config_name: str, overrides: list[str]) -> Iterator[tuple[str, Any, str]]:
    """(name, composed configuration, what in a run's name tells the jobs apart) of every job."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import open_dict

    with initialize_config_dir(str(CONF), version_base="1.3"):
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(overrides)
        of_hydra = [item.input_line for item in parsed if item.is_hydra_override()]
        if any(re.match(r"\+*hydra[./]sweeper", line) for line in of_hydra):
            return
        fixed = [item for item in parsed if not item.is_sweep_override()]
        swept = [item for item in parsed if item.is_sweep_override()]
        lines = [item.input_line for item in fixed]
        choices = [list(item.sweep_string_iterator()) for item in swept]
        suggestion = _telling_apart(swept, choices)
        for number, values in enumerate(itertools.product(*choices)):
            own = [f"{item.get_key_element()}={v}" for item, v in zip(swept, values, strict=True)]
            config = compose(config_name, [*lines, *own], return_hydra_config=True)
            with open_dict(config):
                config.hydra.job.num, config.hydra.job.id = number, str(number)
            HydraConfig.instance().set_config(config)  # for references such as ${hydra:job.num}
            with open_dict(config):
                del config["hydra"]
            name = ", ".join(line.lstrip("+") for line in own)
            yield f"job {number} ({name})", config, suggestion
    HydraConfig.instance().cfg = None


def _telling_apart(swept: list[Any], choices: list[list[str]]) -> str:
    """References to what is swept; to the number of the job, where that makes no name."""
    references = []
    for item, values in zip(swept, choices, strict=True):
        key = item.key_or_group
        is_name = all(re.fullmatch(r"[\w.+-]+", text) for text in [*values, key])
        if not is_name or item.package is not None or len(set(values)) < len(values):
            return "${hydra:job.num}"
        is_group = (CONF / key).is_dir()
        references.append(f"${{hydra:runtime.choices.{key}}}" if is_group else f"${{{key}}}")
    return "-".join(references)
