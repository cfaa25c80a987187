"""Sending the metrics rows to an experiment tracker: Weights & Biases, or none.

metrics.jsonl is the truth and the tracker a copy of it. Every point carries the optimizer step, so
all points share one axis whatever was restarted. A run keeps its W&B id
in its folder. When it is continued, rows that W&B has are not sent again, and rows up to the
checkpoint that W&B lost are sent first: a killed process loses what it had not flushed, offline as
much as a few hundred rows (files are written in blocks of 32 KiB).
"""

import netrc
import os
import secrets
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field

from conf.settings import Count, Settings, Text
from model.training.files import write_atomic
from model.training.metrics_file import Row, is_validation, read
from model.training.run_folder import RunFolder
from model.training.wandb_file import history

_SERVER = "https://api.wandb.ai"


class WandbSettings(Settings):
    """Weights & Biases."""

    kind: Literal["wandb"]
    mode: Literal["auto", "online", "offline", "disabled"] = Field(
        description="auto: online for a user who is logged in, else offline"
    )
    project: Text
    entity: Text | None = Field(description="team or user; null: the user's default")
    tags: list[Text]
    log_every: Count = Field(description="optimizer steps between two rows of metrics.jsonl")


class NoTrackerSettings(Settings):
    """Only metrics.jsonl."""

    kind: Literal["none"]
    log_every: Count = Field(description="optimizer steps between two rows of metrics.jsonl")


LoggerSettings = Annotated[WandbSettings | NoTrackerSettings, Field(discriminator="kind")]


class Tracker:
    """Receives the rows of metrics.jsonl; this one does nothing with them.

    Used as a context manager around training: leaving it finishes the run, whatever happened.
    """

    def start(self, rows: list[Row]) -> None:
        """Begins or continues; `rows` are those of metrics.jsonl up to the first step to come."""

    def log(self, row: Row) -> None:
        """Sends one row; rows come in the order of their steps."""

    def summary(self, values: dict[str, Any]) -> None:
        """Sets closing values of the run."""

    def finish(self) -> None:
        """Delivers everything and closes; may be called twice."""

    @property
    def upload_command(self) -> str | None:
        """What to type to upload the run, None when there is nothing to do."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


def make_tracker(
    settings: WandbSettings | NoTrackerSettings,
    folder: RunFolder,
    config: dict[str, Any],
    rank: int,
) -> Tracker:
    """The tracker that the configuration asks for; ranks other than 0 get one that does nothing.

    Args:
        config: the plain resolved configuration, as saved in the run folder.
    """
    if settings.kind == "none" or rank != 0:
        return Tracker()
    mode = resolve_mode(settings.mode)
    return Tracker() if mode == "disabled" else WandbTracker(settings, mode, folder, config)


class WandbTracker(Tracker):
    """Sends rows through Lightning's WandbLogger; `logger` exists between start and finish.

    Give the trainer `logger=False`: what it would log by itself is in the rows already.
    """

    def __init__(
        self,
        settings: WandbSettings,
        mode: Literal["online", "offline"],
        folder: RunFolder,
        config: dict[str, Any],
    ) -> None:
        self.settings = settings
        self.online = mode == "online"
        self.folder = folder
        self.config = config
        self.logger: Any = None

    def start(self, rows: list[Row]) -> None:
        import wandb
        from lightning.pytorch.loggers import WandbLogger

        run_id = _run_id(self.folder)
        # Read before W&B adds the file of this start.
        delivered = None if self.online else _Delivered.offline(self.folder, run_id)
        try:
            run = wandb.init(
                id=run_id,
                name=self.folder.name,
                project=self.settings.project,
                entity=self.settings.entity,
                tags=self.settings.tags,
                dir=str(self.folder.path),
                config=self.config,
                mode="online" if self.online else "offline",
                # Offline there is nothing to resume from, and W&B would warn about it.
                resume="allow" if self.online else None,
                # Offline it has nothing to say that the closing summary does not.
                settings=wandb.Settings(save_code=False, silent=not self.online),
            )
        except wandb.Error as error:
            raise ValueError(
                f"Weights & Biases could not start online: {error}. Log in (wandb login), or give "
                "logger.mode=offline and upload later with `wandb sync`, or logger=none"
            ) from error
        # With a run of ours Lightning defines no axis of its own (trainer/global_step).
        self.logger = WandbLogger(experiment=run)
        run.define_metric("step")
        run.define_metric("tokens")
        run.define_metric("*", step_metric="step")
        self._delivered = delivered or _Delivered.online(run)
        self._shift: int | None = None
        for row in rows:
            self.log(row)

    def log(self, row: Row) -> None:
        if self._delivered.has(row):
            return
        marker = "validation_step" if is_validation(row) else "train_step"
        point = row | {marker: row["step"]}
        if self._shift is None:
            # W&B drops a point at a step of its own that it has, such as the validation of the
            # last step before a stop; from there on its own step runs ahead of ours.
            self._shift = max(0, self._delivered.next_step - row["step"])
        self.logger.experiment.log(point, step=row["step"] + self._shift)

    def summary(self, values: dict[str, Any]) -> None:
        if self.logger is None:  # no step was left to train
            self.start(read(self.folder.metrics_file))
        self.logger.experiment.summary.update(values)

    def finish(self) -> None:
        if self.logger is not None:
            self.logger.experiment.finish()
            self.logger = None

    @property
    def upload_command(self) -> str | None:
        return None if self.online else f"wandb sync {self.folder.path}/wandb/offline-run-*"


def resolve_mode(
    mode: Literal["auto", "online", "offline", "disabled"],
) -> Literal["online", "offline", "disabled"]:
    """`auto` follows $WANDB_MODE, else it is online for a user who is logged in."""
    if mode != "auto":
        return mode
    wanted = os.environ.get("WANDB_MODE", "")
    if wanted in ("online", "offline", "disabled"):
        return wanted
    return "online" if _is_logged_in() else "offline"


def _is_logged_in() -> bool:
    """Whether there is an API key in the environment or in the netrc file, as W&B looks for it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", _SERVER)).hostname
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return host in netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError):
        return False


def _run_id(folder: RunFolder) -> str:
    """The id of the run at W&B, made up at the first start."""
    if not folder.wandb_id_file.is_file():
        write_atomic(folder.wandb_id_file, secrets.token_hex(4) + "\n")
    return folder.wandb_id_file.read_text(encoding="utf-8").strip()


class _Delivered:
    """The train steps and the validations that W&B has of earlier starts of the run.

    `next_step` is the first free one of W&B's own steps.
    """

    def __init__(self, train: set[int], validation: set[int], next_step: int) -> None:
        self.train = train
        self.validation = validation
        self.next_step = next_step

    @classmethod
    def offline(cls, folder: RunFolder, run_id: str) -> Self:
        """From the files that earlier starts left in the run folder."""
        train: set[int] = set()
        validation: set[int] = set()
        next_step = 0
        for file in sorted(folder.path.glob(f"wandb/*run-*-{run_id}/run-{run_id}.wandb")):
            for point in history(file):
                next_step = max(next_step, point["_step"] + 1)
                # Both, when a validation follows a train row of the same step.
                if "validation_step" in point:
                    validation.add(point["validation_step"])
                if "train_step" in point:
                    train.add(point["train_step"])
        return cls(train, validation, next_step)

    @classmethod
    def online(cls, run: Any) -> Self:
        """From the server's summary: points arrive in order, so it has all up to the last."""
        last_train = run.summary.get("train_step", 0)
        last_validation = run.summary.get("validation_step", 0)
        return cls(set(range(last_train + 1)), set(range(last_validation + 1)), run.step)

    def has(self, row: Row) -> bool:
        return row["step"] in (self.validation if is_validation(row) else self.train)
