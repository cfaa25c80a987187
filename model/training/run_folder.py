"""The folder of one run, `runs/<run.name>/`: what was asked for, by which code, and what came out.

    config.yaml        the resolved configuration
    revision.json      git revision, versions, host and command of every start
    diff.patch         uncommitted changes at the first start (diff-2.patch: the second, ...)
    metrics.jsonl      the numbers (see metrics.py)
    checkpoints/       see checkpoints.py
    plots/             see plots.py
    wandb_id           the id of the run at Weights & Biases
    summary.json       the closing numbers (see summary.py)

The name of a run carries no time stamp: giving the same command again continues the run. Nothing in
the folder depends on the folder's own name or place, so it may be renamed and moved.
"""

import errno
import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel

from conf.cli import check
from conf.records import read_record
from model.training.differences import changed, saved_values
from model.training.files import write_atomic

_RESTORE = "restore it from a copy, or start a new run: run.name=NAME"
_REPOSITORY = Path(__file__).resolve().parents[2]
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


class RunFolder:
    """The paths inside a run's folder, and how it is created and continued.

    Only rank 0 calls `check` and `open`; the other ranks use the paths.

    Args:
        path: the folder; its last part is the run's name, its parent is created when missing.

    Raises:
        ValueError: the last part is no valid run name.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        check_run_name(self.path.name)
        self.config_file = self.path / "config.yaml"
        self.revision_file = self.path / "revision.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.plots = self.path / "plots"
        self.wandb_id_file = self.path / "wandb_id"
        self.summary_file = self.path / "summary.json"

    @classmethod
    def named(cls, root: Path | str, name: str) -> Self:
        """The folder of the run `name` among those in `root`.

        Raises:
            ValueError: `name` is no valid run name (a path such as a/b is none).
        """
        check_run_name(name)
        return cls(Path(root) / name)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def exists(self) -> bool:
        """Whether the run was created before (a folder appears only when it is complete)."""
        return self.config_file.is_file()

    def check(
        self, config: Any, may_change: Collection[str], forceable: Collection[str] = ()
    ) -> None:
        """Raises what `open` and `locked` would raise; to be called before any work is done.

        Arguments as for `open`. Nothing is created where there is no run yet.
        """
        given = plain(config)
        if self.exists:
            check_unchanged(self, self.config(_schema_of(config)), given, may_change, forceable)
            self._starts()
            with self.locked():
                pass
        else:
            self._check_free()

    def open(
        self, config: Any, may_change: Collection[str], forceable: Collection[str] = ()
    ) -> bool:
        """Creates the run, or continues it when it exists; returns whether it is continued.

        Args:
            config: the configuration; see `plain` for what it may be.
            may_change: dotted keys that may differ from the saved configuration; a key also
                covers everything below it. The saved configuration is then replaced.
            forceable: keys that data.force=true lets differ, for the message.

        Raises:
            ValueError: another key differs, or the folder holds files but no run.
        """
        given = plain(config)
        if not self.exists:
            self._create(given)
            return False
        check_unchanged(self, self.config(_schema_of(config)), given, may_change, forceable)
        starts = self._starts()
        if self.config() != given:
            write_atomic(self.config_file, _to_yaml(given))
        number = len(starts["continued"]) + 2
        starts["continued"].append(_revision(self.path, f"diff-{number}.patch"))
        write_atomic(self.revision_file, json.dumps(starts, indent=2) + "\n")
        return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for this process, until it ends however it ends.

        Raises:
            ValueError: another process has it.
        """
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"run {self.name!r} is being trained by another process: wait for it, stop it, "
                    "or give another run.name"
                ) from None
            except OSError as error:
                raise ValueError(
                    f"{self.path} is on a file system without file locks ({error}): give another "
                    "folder, run.root=FOLDER"
                ) from error
            yield

    def config(self, schema: type[BaseModel] | None = None) -> dict[str, Any]:
        """The saved configuration.

        Args:
            schema: read it as this; keys that older code did not know get their meaning, see
                `conf.settings.Settings.before`.

        Raises:
            ValueError: the file is damaged, or its keys and values are not those of `schema`.
        """
        try:
            saved = yaml.safe_load(self.config_file.read_text(encoding="utf-8"))
            if not isinstance(saved, dict):
                raise ValueError("it holds no settings")
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(
                f"{self.config_file} is damaged ({' '.join(str(error).split())}): {_RESTORE}"
            ) from None
        if schema is None:
            return saved
        return read_saved(saved, schema, self.config_file, self).model_dump(mode="json")

    @property
    def code(self) -> str | None:
        """The git revision of the newest start; None where it is not known."""
        try:
            starts = self._starts()
        except ValueError:
            return None
        return (starts["continued"] or [starts])[-1].get("git_revision")

    def _starts(self) -> dict[str, Any]:
        return read_record(self.revision_file, ["continued"], _RESTORE)

    def _check_free(self) -> None:
        _check_writable(self.path)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ValueError(
                f"{self.path} exists but holds no run (no config.yaml). Give another run.name, "
                f"or move it away: mv {self.path} {self.path}.old"
            )

    def _create(self, config: dict[str, Any]) -> None:
        self._check_free()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._remove_killed_starts()
        # Filled under another name and renamed: a start that is killed here blocks nothing.
        building = self.path.with_name(
            f".{self.name}.creating.{socket.gethostname()}.{os.getpid()}"
        )
        (building / "checkpoints").mkdir(parents=True)
        (building / "plots").mkdir()
        (building / "config.yaml").write_text(_to_yaml(config), encoding="utf-8")
        revision = {**_revision(building, "diff.patch"), "continued": []}
        (building / "revision.json").write_text(
            json.dumps(revision, indent=2) + "\n", encoding="utf-8"
        )
        try:
            os.rename(building, self.path)
        except OSError as error:
            shutil.rmtree(building)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            raise ValueError(
                f"{self.path} was created by another process at the same moment ({error}); "
                "give each run its own run.name"
            ) from error

    def _remove_killed_starts(self) -> None:
        prefix = f".{self.name}.creating.{socket.gethostname()}."
        for leftover in self.path.parent.glob(f"{prefix}*"):
            process = leftover.name.removeprefix(prefix)
            if process.isdigit() and not Path(f"/proc/{process}").exists():
                shutil.rmtree(leftover)


def _check_writable(path: Path) -> None:
    """Raises the OSError that creating the folder `path` would raise, without creating it."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))


def read_saved(
    values: Any, schema: type[BaseModel], file: Path, folder: RunFolder | None
) -> BaseModel:
    """What `file`, of the run in `folder` if that is known, holds, as `schema`.

    Raises:
        ValueError: other code wrote it; the message names the keys, and the code if it is known.
    """
    try:
        return check(values, schema, saved=True)
    except ValueError as error:
        code = folder.code if folder is not None else None
        raise ValueError(
            f"{file} was written by other code, and this code cannot read it: {error}\n"
            "Use the code that wrote it" + (f": git checkout {code}" if code else "")
        ) from None


def _schema_of(config: Any) -> type[BaseModel] | None:
    return type(config) if isinstance(config, BaseModel) else None


def is_run_name(name: str) -> bool:
    """Whether `check_run_name` accepts a name."""
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*", name)) and ".." not in name


def check_run_name(name: str) -> None:
    """Refuses names that would leave the folder of the runs or that shells trip over.

    Raises:
        ValueError: always naming the rule and an example.
    """
    if not is_run_name(name):
        raise ValueError(
            f"run.name={name!r} is no name for a run: letters, digits and . _ = , + - only, "
            "starting with a letter or digit, without '..'; for example run.name=gla-small-1"
        )


def check_unchanged(
    folder: RunFolder,
    saved: Mapping[str, Any],
    given: Mapping[str, Any],
    may_change: Collection[str],
    forceable: Collection[str] = (),
) -> None:
    """Refuses to continue a run under another configuration.

    Raises:
        ValueError: keys outside `may_change` differ; the message names each of them.
    """
    refused = [
        difference for difference in changed(saved, given) if not _covers(may_change, difference[0])
    ]
    if not refused:
        return
    lines = "\n".join(f"  {key}: saved {old!r}, given {new!r}" for key, old, new in refused)
    overrides = saved_values(refused)
    force = ""
    if all(_covers(forceable, key) for key, _, _ in refused):
        force = (
            "To continue this one on other data, add data.force=true: the steps that are left read "
            "what they would have read in a run with these settings. "
        )
    raise ValueError(
        f"{folder.path} was started with another configuration:\n{lines}\n"
        f"To continue it, give the saved values: {overrides}\nTo start a new run, give another "
        f"run.name; with run.init_from={folder.path} it starts from this run's weights. {force}"
        f"May change in a continued run: {', '.join(sorted(may_change)) or 'nothing'}."
    )


def _covers(keys: Collection[str], key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def plain(config: Any) -> dict[str, Any]:
    """The configuration as nested dicts, lists and scalars, with every reference resolved.

    Args:
        config: a mapping, an OmegaConf configuration (interpolations are resolved, values that are
            missing stay "???") or a pydantic model.

    Raises:
        ValueError: a value equals a secret of the environment (a variable named like a key or a
            token), which must not be written to disk or sent to a tracker.
        TypeError: a value has no plain form.
    """
    if type(config).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        config = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    secrets = _secrets()
    return _plain(config, (), secrets)


def _plain(value: Any, keys: tuple[str, ...], secrets: Mapping[str, str]) -> Any:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _plain(item, (*keys, str(key)), secrets) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item, (*keys, str(index)), secrets) for index, item in enumerate(value)]
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str) and value in secrets:
        raise ValueError(
            f"{'.'.join(keys)} holds the value of ${secrets[value]}: a secret must not be saved "
            "with the run. Leave it out of the configuration; programs read it from the environment"
        )
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"{'.'.join(keys)}: {type(value).__name__} has no plain form")


def _secrets() -> dict[str, str]:
    """The environment's secret values and the names of their variables."""
    return {
        value: name
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value) >= 12 and not Path(value).exists()
    }


def _to_yaml(config: dict[str, Any]) -> str:
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _revision(folder: Path, diff_name: str) -> dict[str, Any]:
    """What this start runs on; uncommitted changes are saved as `diff_name` in `folder`."""
    import lightning
    import torch

    diff = _git("diff", "HEAD")
    if diff:
        (folder / diff_name).write_text(diff + "\n", encoding="utf-8")
    untracked = _git("ls-files", "--others", "--exclude-standard")
    secrets = _secrets()
    command = ["(secret)" if part in secrets else part for part in [sys.executable, *sys.argv]]
    return {
        "git_revision": _git("rev-parse", "HEAD"),
        "diff": diff_name if diff else None,
        "untracked": untracked.splitlines() if untracked else [],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "hostname": socket.gethostname(),
        "command": shlex.join(command),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git(*arguments: str) -> str | None:
    """What git prints; None where the code is no git checkout or git is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_REPOSITORY), *arguments], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode("utf-8", errors="replace").strip()
