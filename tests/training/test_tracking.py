import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pydantic import TypeAdapter
from standin import Standin, StandinData, make_trainer

from model.training.checkpoints import Checkpoints, latest
from model.training.metrics import Metrics
from model.training.metrics_file import append, read
from model.training.run_folder import RunFolder
from model.training.tracking import (
    LoggerSettings,
    Tracker,
    WandbTracker,
    make_tracker,
    resolve_mode,
)
from model.training.wandb_file import history

CONFIG = {"model": {"layers": ["gla", "softmax"], "width": 4}, "name": "a"}


def settings(name="wandb", **changes):
    values = yaml.safe_load(Path(f"conf/logger/{name}.yaml").read_text())
    return TypeAdapter(LoggerSettings).validate_python(values | changes)


@pytest.fixture(autouse=True)
def not_logged_in(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)


def train(path: Path, kill_at: int | None) -> list[tuple[int, float]]:
    """One start of a run of 40 steps: checkpoints every 10, validation every 7, W&B offline."""

    class Killed(Standin):
        def training_step(self, batch, batch_idx):
            if self.global_step == kill_at:
                wait_until_something_is_on_disk(path)
                os.kill(os.getpid(), signal.SIGKILL)
            super().training_step(batch, batch_idx)
            # Long rows: W&B writes to its file in blocks, and some are to be written by then.
            self.last_metrics |= {f"filler{index}": index / 7 for index in range(200)}

    folder = RunFolder(path)
    folder.open(CONFIG, may_change=[])
    tracker = make_tracker(settings(mode="offline", log_every=1), folder, folder.config(), rank=0)
    metrics = Metrics(folder.metrics_file, 1, tracker)
    checkpoints = Checkpoints(folder.checkpoints, 10, 2, 0, {})
    # Only scheduled checkpoints, so that the crash loses steps.
    checkpoints.on_validation_end = lambda *_: None
    module = Killed()
    with tracker:
        make_trainer([metrics, checkpoints], 40, val_check_interval=7).fit(
            module, datamodule=StandinData(), ckpt_path=latest(folder.checkpoints)
        )
        tracker.summary({"val_bits_per_byte": 1.5})
    return module.seen


def wait_until_something_is_on_disk(path: Path) -> None:
    while not points(path):
        time.sleep(0.05)


def points(path: Path) -> list[dict]:
    run_id = (path / "wandb_id").read_text().strip()
    files = sorted(path.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
    return [point for file in files for point in history(file)]


@pytest.mark.long
def test_every_step_reaches_the_tracker_once_though_a_start_was_killed(tmp_path):
    path = tmp_path / "run"
    script = (
        "import sys; sys.path[:0] = ['.', 'tests/training']\n"
        "from pathlib import Path; from test_tracking import train\n"
        "train(Path(sys.argv[1]), 27)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(read(path / "metrics.jsonl")) == 27 + 3
    run_id = (path / "wandb_id").read_text()
    delivered_before = len(points(path))
    assert delivered_before > 0
    script = script.replace("27", "None")
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "drop" not in done.stderr.lower()
    assert (path / "wandb_id").read_text() == run_id

    sent = points(path)
    assert len(sent) > delivered_before
    rows = read(path / "metrics.jsonl")
    for metric in ("loss", "learning_rate", "grad_norm", "val_bits_per_byte"):
        wanted = [(row["step"], row["tokens"], row[metric]) for row in rows if metric in row]
        got = [(point["step"], point["tokens"], point[metric]) for point in sent if metric in point]
        assert got == wanted
    assert [point["step"] for point in sent if "loss" in point] == list(range(1, 41))
    assert [point["_step"] for point in sent] == [point["step"] for point in sent]
    assert not any("trainer/global_step" in point for point in sent)


class FakeRun:
    """Stands in for a W&B run: records what is logged."""

    def __init__(self, summary=None, step=0):
        self.summary = summary or {}
        self.step = step
        self.logged = []
        self.metrics = {}
        self.finished = 0

    def define_metric(self, name, step_metric=None):
        self.metrics[name] = step_metric

    def log(self, point, step):
        self.logged.append((step, point))

    def finish(self):
        self.finished += 1


@pytest.fixture
def fake_wandb(monkeypatch):
    state = SimpleNamespace(run=FakeRun(), given=None)

    def init(**given):
        state.given = given
        return state.run

    monkeypatch.setattr("wandb.init", init)
    return state


def opened(tmp_path, config=CONFIG):
    folder = RunFolder(tmp_path / "run")
    folder.open(config, may_change=[])
    return folder


def test_the_tracker_gets_the_saved_configuration_and_its_own_axes(tmp_path, fake_wandb):
    folder = opened(tmp_path)
    tracker = make_tracker(settings(mode="online", tags=["x"]), folder, folder.config(), rank=0)
    with tracker:
        tracker.start([])
    given = fake_wandb.given
    assert given["config"] == CONFIG
    assert type(given["config"]["model"]["layers"]) is list
    assert given["id"] == folder.wandb_id_file.read_text().strip()
    assert given["resume"] == "allow"
    assert given["dir"] == str(folder.path)
    assert given["name"] == "run"
    assert given["tags"] == ["x"]
    assert fake_wandb.run.metrics == {"step": None, "tokens": None, "*": "step"}
    assert fake_wandb.run.finished == 1


def rows(*steps):
    return [{"step": step, "tokens": step, "loss": 0.5} for step in steps]


def test_a_resumed_online_run_sends_what_the_server_lacks(tmp_path, fake_wandb):
    folder = opened(tmp_path)
    validation = {"step": 7, "tokens": 7, "val_bits_per_byte": 1.0}
    fake_wandb.run = FakeRun({"train_step": 7}, step=8)
    tracker = make_tracker(settings(mode="online"), folder, CONFIG, rank=0)
    tracker.start([*rows(*range(1, 8)), validation, *rows(8, 9, 10)])
    for row in rows(11, 12):
        tracker.log(row)
    logged = fake_wandb.run.logged
    assert [point["step"] for _, point in logged] == [7, 8, 9, 10, 11, 12]
    assert "val_bits_per_byte" in logged[0][1]
    own_steps = [step for step, _ in logged]
    assert own_steps == sorted(set(own_steps))
    assert own_steps[0] >= 8  # an earlier one would be dropped by the server


def test_steps_that_a_crashed_online_run_delivered_are_not_sent_again(tmp_path, fake_wandb):
    folder = opened(tmp_path)
    fake_wandb.run = FakeRun({"train_step": 25, "validation_step": 21}, step=26)
    tracker = make_tracker(settings(mode="online"), folder, CONFIG, rank=0)
    tracker.start(rows(*range(1, 21)))
    for row in rows(*range(21, 31)):
        tracker.log(row)
    assert [(step, point["step"]) for step, point in fake_wandb.run.logged] == [
        (step, step) for step in range(26, 31)
    ]


def test_a_run_without_steps_left_still_delivers_what_was_lost(tmp_path, fake_wandb):
    folder = opened(tmp_path)
    for row in rows(1, 2, 3):
        append(folder.metrics_file, row)
    with make_tracker(settings(mode="online"), folder, CONFIG, rank=0) as tracker:
        tracker.summary({"val_bits_per_byte": 1.0})
    assert [point["step"] for _, point in fake_wandb.run.logged] == [1, 2, 3]
    assert fake_wandb.run.summary == {"val_bits_per_byte": 1.0}
    assert fake_wandb.run.finished == 1


def test_the_tracker_is_finished_when_training_fails(tmp_path, fake_wandb):
    tracker = make_tracker(settings(mode="offline"), opened(tmp_path), CONFIG, rank=0)
    tracker.start([])
    with pytest.raises(TypeError), tracker:
        len(None)
    assert fake_wandb.run.finished == 1


def test_a_failing_start_names_the_way_out(tmp_path, monkeypatch):
    import wandb

    def init(**_):
        raise wandb.Error("no route to host")

    monkeypatch.setattr("wandb.init", init)
    tracker = make_tracker(settings(mode="online"), opened(tmp_path), CONFIG, rank=0)
    with pytest.raises(ValueError, match=r"no route to host.*logger\.mode=offline"):
        tracker.start([])


def test_auto_is_online_only_for_a_user_who_is_logged_in(tmp_path, monkeypatch):
    assert resolve_mode("auto") == "offline"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    assert resolve_mode("auto") == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert resolve_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert resolve_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert resolve_mode("auto") == "offline"
    assert resolve_mode("online") == "online"


@pytest.mark.parametrize(
    ("given", "rank"),
    [(settings("none"), 0), (settings(mode="disabled"), 0), (settings(mode="online"), 1)],
)
def test_no_tracker_where_none_is_wanted_and_on_other_ranks(tmp_path, given, rank):
    tracker = make_tracker(given, opened(tmp_path), CONFIG, rank=rank)
    assert type(tracker) is Tracker
    assert tracker.upload_command is None


def test_offline_runs_name_the_command_to_upload_them(tmp_path):
    tracker = make_tracker(settings(mode="auto"), opened(tmp_path), CONFIG, rank=0)
    assert isinstance(tracker, WandbTracker)
    assert tracker.upload_command == f"wandb sync {tmp_path}/run/wandb/offline-run-*"


def test_a_cut_off_file_gives_its_complete_points(tmp_path):
    assert list(history_of(tmp_path, b"")) == []
    assert list(history_of(tmp_path, b":W&B\xe1\xbe\x00")) == []


def history_of(tmp_path, content):
    file = tmp_path / "run-x.wandb"
    file.write_bytes(content)
    return history(file)
