"""What every command shares: Hydra composes, the schema checks, one clear error leaves.

Hydra alone accepts any key that is added with `+`, cannot read parentheses or keep a trailing
space, and answers a misspelt key without naming the allowed ones. So, before Hydra sees them,

- `key=value` becomes `++key=value`: Hydra composes it whatever the key, and the schema, which
  knows every key and its type, refuses it with the allowed names;
- values that are free text (a layer pattern, a prompt), or that Hydra's grammar cannot read, are
  quoted.
"""

import difflib
import os
import re
import select
import shlex
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from conf.paths import explain
from conf.process import tune_process
from conf.settings import SAVED
from conf.sweep import CONF, check_sweep

_SWEEP_FLAGS = ("-m", "--multirun")
_UNREADABLE = object()

# A run's files go to runs/<run.name>/: Hydra writes no folders or log files of its own.
_HYDRA = (
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.dir=runs/.sweep",
    "hydra.sweep.subdir=.",
    "hydra.job.chdir=false",
    "hydra/hydra_logging=disabled",
    "hydra/job_logging=disabled",
)


def hydra_main(
    config_name: str,
    schema: type[BaseModel],
    free_text: tuple[str, ...] = (),
    check: Callable[[Any], Path | None] = lambda settings: None,
    only_prints: bool = False,
) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Decorates `task(settings)`: a Hydra entry point whose argument is a validated `schema`.

    Args:
        config_name: name of the YAML file in conf/ to compose, without its suffix.
        schema: the pydantic model of the whole configuration.
        free_text: keys whose values are taken literally up to the last character.
        check: in a sweep, what `task` would refuse is refused for all jobs before the first one
            starts; returns the folder that no two jobs may share, None where they may.
        only_prints: what it prints is all it does: where nobody reads on (`| head`), it ends
            without a message.

    A user's mistake (`ValueError`, a failed validation, a missing file) ends the program with one
    message on stderr and exit code 1; `HYDRA_FULL_ERROR=1` shows the traceback as well.
    """

    def decorate(task: Callable[[Any], None]) -> Callable[[], None]:
        def start() -> None:
            tune_process()
            import hydra

            try:
                sys.argv[1:] = rewrite_arguments(sys.argv[1:], free_text)
                if sys.argv[1] in _SWEEP_FLAGS and not sys.argv[2].startswith("-"):
                    check_sweep(config_name, sys.argv[2:], partial(_check_job, schema, check))
            except ValueError as error:
                print(f"error: {error}", file=sys.stderr)
                sys.exit(1)

            def composed(cfg: Any) -> None:
                _run(task, cfg, schema, only_prints)

            hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(
                composed
            )()

        @wraps(task)
        def main() -> None:
            try:
                start()
            except KeyboardInterrupt:
                print("interrupted; the same command goes on from what is saved", file=sys.stderr)
                sys.exit(130)

        return main

    return decorate


def _check_job(
    schema: type[BaseModel], check: Callable[[Any], Path | None], cfg: Any
) -> Path | None:
    settings = validate(cfg, schema)
    try:
        return check(settings)
    except OSError as error:
        raise ValueError(explain(error, settings)) from error


def _run(task: Callable[[Any], None], cfg: Any, schema: type[BaseModel], only_prints: bool) -> None:
    settings = None
    try:
        settings = validate(cfg, schema)
        task(settings)
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            if not only_prints:
                print("error: ended, as nobody reads standard output any more", file=sys.stderr)
            sys.exit(1)
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        sys.stdout.flush()
        message = explain(error, settings) if isinstance(error, OSError) else error
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)


def _nobody_reads() -> bool:
    """Whether the reader of standard output, such as `head`, has ended; the rest goes nowhere."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file: a test, a notebook
        return False
    state = select.poll()
    state.register(output, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in state.poll(0)):
        return False
    # Python flushes once more when it ends, and would tell of it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


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
        from conf.errors import how_to_give

        raise ValueError(f"{key}: {reason}; give it as {how_to_give(key, schema)}") from None
    return check(values, schema)


def check(values: Any, schema: type[BaseModel], saved: bool = False) -> Any:
    """Checks plain values against `schema`; the error names every problem, see `validate`.

    saved: the values are those of a run, maybe an older one; see `conf.settings.Settings.before`.
    """
    try:
        return schema.model_validate(values, context=SAVED if saved else None)
    except ValidationError as error:
        from conf.errors import describe

        problems = describe(error, schema, values, typed=not saved)
        if len(problems) == 1:
            raise ValueError(problems[0]) from None
        listing = "\n".join(f"  - {problem}" for problem in problems)
        raise ValueError(f"{len(problems)} problems in the configuration\n{listing}") from None


def rewrite_arguments(arguments: list[str], free_text: tuple[str, ...] = ()) -> list[str]:
    """The whole command line for Hydra: flags first, then overrides, wherever they were typed.

    Raises:
        ValueError: a group has no such choice, or an override is none that Hydra can read.
    """
    flags: list[str] = []
    overrides: list[str] = []
    after_flag = False
    for argument in arguments:
        is_flag = argument.startswith("-")
        is_value = after_flag and "=" not in argument and not argument.startswith("~")
        (flags if is_flag or is_value else overrides).append(argument)
        after_flag = is_flag
    sweeping = any(flag in flags for flag in _SWEEP_FLAGS)
    return [*flags, *_HYDRA, *rewrite_overrides(overrides, free_text, sweeping)]


def rewrite_overrides(
    overrides: list[str], free_text: tuple[str, ...] = (), sweeping: bool = False
) -> list[str]:
    """Makes command-line overrides readable for Hydra (see the module's docstring).

    `+key`, `~key`, config groups and Hydra's own settings keep their form. In a sweep, commas
    separate the values of a job each.
    """
    rewritten = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            if not override.startswith("~"):
                raise ValueError(
                    f"{shlex.quote(override)}: not KEY=VALUE. A value with spaces stands in "
                    "quotes, and so do several files: a glob, or a list such as "
                    "data.files='[a.txt,b.txt]'"
                )
            rewritten.append(override)
            continue
        name = key.lstrip("+~")
        if name in free_text:
            value = _quote(value)
        elif not _parses(override):
            value = ",".join(map(_quote, value.split(","))) if sweeping else _quote(value)
        if override == "experiment=null":
            continue  # the default, for which Hydra has no word
        is_group = _is_group(name)
        if is_group and not name.startswith("hydra") and not key.startswith("~"):
            _check_choice(name, value)
        prefix = "++" if key == name and not is_group else ""
        rewritten.append(f"{prefix}{key}={value}")
        if not _parses(rewritten[-1]):
            raise ValueError(
                f"{shlex.quote(override)}: {key!r} is no key; keys are names of letters without "
                "accents, digits, _ and -, joined by dots"
            )
    return rewritten


def override(key: str, value: Any) -> str:
    """What to type in a shell to give `key` exactly `value`: None, a number, text, lists, dicts."""
    return shlex.quote(f"{key}={_literal(value)}")


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_literal(item)}' for key, item in value.items())}}}"
    if not isinstance(value, str):
        return str(value).lower()
    simple = re.fullmatch(r"[\w./*?-]+", value) and _parsed(f"key={value}") == value
    return value if simple else _quote(value)


def _is_group(name: str) -> bool:
    return "@" in name or "/" in name or name.startswith("hydra") or (CONF / name).is_dir()


def _check_choice(key: str, value: str) -> None:
    """Refuses a choice that no file of the group describes; lists and sweeps are left to Hydra."""
    choices = sorted(path.stem for path in (CONF / key.split("@")[0]).glob("*.yaml"))
    for choice in value.split(","):
        if choices and re.fullmatch(r"[\w-]+", choice) and choice not in choices:
            close = difflib.get_close_matches(choice, choices, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"{key}={choice}: not one of {', '.join(choices)}{hint}")


def _quote(value: str) -> str:
    """A Hydra string literal that means exactly `value`: no interpolation, no backslash lost."""
    # Hydra and OmegaConf read a backslash literally unless it stands before a quote, before an
    # interpolation or at the end; only there are they doubled.
    value = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", value)
    value = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", value)
    value = re.sub(r"(\\+)\Z", lambda found: found[1] * 2, value)
    return f"'{value}'"


def _parses(override: str) -> bool:
    return _parsed(override) is not _UNREADABLE


def _parsed(override: str) -> Any:
    """The value that Hydra reads, `_UNREADABLE` where its grammar fails."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(override).value()
    except HydraException:
        return _UNREADABLE
