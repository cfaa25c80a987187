"""What every command shares: Hydra composes, the schema checks, one clear error leaves.

Hydra alone accepts any key that is added with `+`, cannot read parentheses or keep a trailing
space, and answers a misspelt key without naming the allowed ones. So, before Hydra sees them,

- `key=value` becomes `++key=value`: Hydra composes it whatever the key, and the schema, which
  knows every key and its type, refuses it with the allowed names;
- values that are free text (a layer pattern, a prompt), or that Hydra's grammar cannot read, are
  quoted.
"""

import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from conf.process import tune_process

CONF = Path(__file__).parent

# A run's files go to runs/<run.name>/: Hydra writes no folders or log files of its own.
_HYDRA = (
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.dir=.",
    "hydra.sweep.subdir=.",
    "hydra.job.chdir=false",
    "hydra/hydra_logging=disabled",
    "hydra/job_logging=disabled",
)


def hydra_main(
    config_name: str, schema: type[BaseModel], free_text: tuple[str, ...] = ()
) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Decorates `task(settings)`: a Hydra entry point whose argument is a validated `schema`.

    Args:
        config_name: name of the YAML file in conf/ to compose, without its suffix.
        schema: the pydantic model of the whole configuration.
        free_text: keys whose values are taken literally up to the last character.

    A user's mistake (`ValueError`, a failed validation, a missing file) ends the program with one
    message on stderr and exit code 1; `HYDRA_FULL_ERROR=1` shows the traceback as well.
    """

    def decorate(task: Callable[[Any], None]) -> Callable[[], None]:
        @functools.wraps(task)
        def main() -> None:
            tune_process()
            import hydra

            sys.argv[1:] = [*_HYDRA, *rewrite_overrides(sys.argv[1:], free_text)]

            def composed(cfg: Any) -> None:
                _run(task, cfg, schema)

            hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(
                composed
            )()

        return main

    return decorate


def _run(task: Callable[[Any], None], cfg: Any, schema: type[BaseModel]) -> None:
    try:
        task(validate(cfg, schema))
    except (ValueError, FileNotFoundError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; the same command starts again", file=sys.stderr)
        sys.exit(130)


def validate(cfg: Any, schema: type[BaseModel]) -> Any:
    """Resolves a composed configuration and checks every key and value against `schema`.

    Raises:
        ValueError: naming every wrong key and value at once, and what is allowed there.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        reason = str(error).splitlines()[0]
        raise ValueError(f"{key}: {reason}; give it as {key}=VALUE") from None
    return check(values, schema)


def check(values: Any, schema: type[BaseModel]) -> Any:
    """Checks plain values against `schema`; the error names every problem, see `validate`."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        from conf.errors import describe

        problems = describe(error, schema, values)
        if len(problems) == 1:
            raise ValueError(problems[0]) from None
        listing = "\n".join(f"  - {problem}" for problem in problems)
        raise ValueError(f"{len(problems)} problems in the configuration\n{listing}") from None


def rewrite_overrides(arguments: list[str], free_text: tuple[str, ...] = ()) -> list[str]:
    """Makes command-line overrides readable for Hydra (see the module's docstring).

    Flags, `+key`, `~key`, config groups and Hydra's own settings pass through unchanged.
    """
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    sweeping = any(flag in arguments for flag in ("-m", "--multirun"))
    rewritten = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument.startswith("-") or not equals:
            rewritten.append(argument)
            continue
        name = key.lstrip("+~")
        if name in free_text:
            parts = value.split(",") if sweeping and not _is_quoted(value) else [value]
            value = ",".join(part if _is_quoted(part) else _quote(part) for part in parts)
        elif not _parses(argument):
            value = _quote(value)
        is_group = name in groups or "@" in name or "/" in name or name.startswith("hydra")
        prefix = "++" if key == name and not is_group else ""
        rewritten.append(f"{prefix}{key}={value}")
    return rewritten


def _is_quoted(value: str) -> bool:
    return len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""


def _quote(value: str) -> str:
    """A Hydra string literal that means exactly `value`: no interpolation, no backslash lost."""
    # Hydra and OmegaConf read a backslash literally unless it stands before a quote, before an
    # interpolation or at the end; only there are they doubled.
    value = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", value)
    value = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", value)
    value = re.sub(r"(\\+)\Z", lambda found: found[1] * 2, value)
    return f"'{value}'"


def _parses(override: str) -> bool:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return True
