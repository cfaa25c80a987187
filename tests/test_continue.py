"""Stopping, continuing, moving and refusing to continue a run, through the command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import eval as eval_command
import train as train_command
from model.training.checkpoint_io import load
from model.training.checkpoints import latest
from model.training.metrics_file import read
from model.training.run_folder import RunFolder
from model.training.wandb_file import history
from tests.commands import SMALL, losses


def test_a_killed_run_continues_as_if_nothing_had_happened(command, tmp_path, text):
    longer = "trainer.tokens=7680"
    assert command(train_command.main, "run.name=whole", longer)[0] == 0
    arguments = [
        sys.executable,
        "train.py",
        *SMALL,
        f"data.root={text}/prepared",
        f"data.files={text}/*.jsonl",
        f"run.root={tmp_path}",
        "run.name=killed",
        longer,
    ]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    _wait_for(lambda: len(read(metrics)) >= 9 if metrics.exists() else False, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(losses(tmp_path / "killed"))
    assert done >= 8

    assert command(train_command.main, "run.name=killed", longer)[0] == 0
    whole, killed = (
        losses(tmp_path / name, "learning_rate", "grad_norm", "tokens")
        for name in ("whole", "killed")
    )
    assert killed == whole
    states = [
        load(latest(tmp_path / name / "checkpoints"))["state_dict"] for name in ("whole", "killed")
    ]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_ctrl_c_saves_and_says_how_to_continue(command, tmp_path, text):
    arguments = [
        sys.executable,
        "train.py",
        *SMALL,
        "trainer.tokens=1e6",
        f"data.root={text}/prepared",
        f"data.files={text}/*.jsonl",
        f"run.root={tmp_path}",
        "run.name=stopped",
    ]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    _wait_for(lambda: len(read(metrics)) >= 3 if metrics.exists() else False, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in err
    step = max(losses(tmp_path / "stopped"))
    assert latest(tmp_path / "stopped" / "checkpoints").name == f"step-{step:08d}.ckpt"


def _wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the command ended early: {process.returncode}"
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_is_not_continued_with_other_settings(command, trained):
    trained("fixed")
    code, _, err = command(train_command.main, "run.name=fixed", "optimizer.lr=0.5")
    assert code == 1
    assert "optimizer.lr: saved" in err
    assert "given 0.5" in err
    assert "run.name" in err


def occupied(run: Path) -> None:
    (run / "config.yaml").unlink()


def damaged(run: Path) -> None:
    for file in (run / "checkpoints").glob("step-*.ckpt"):
        file.write_bytes(file.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("overrides", "prevent", "named"),
    [
        (["data.seq_len=64"], None, "data.seq_len: saved 32, given 64"),
        (["tokenizer.vocab_size=290"], None, "tokenizer.vocab_size: saved 288, given 290"),
        (["trainer.minutes=3"], None, "trainer.minutes: saved None, given 3.0"),
        ([], occupied, "holds no run"),
        ([], damaged, "is cut off"),
    ],
    ids=["seq_len", "vocab_size", "minutes", "occupied", "damaged"],
)
def test_a_run_that_cannot_be_continued_is_refused_before_data_is_prepared(
    command, trained, tmp_path, overrides, prevent, named
):
    trained("old")
    if prevent is not None:
        prevent(tmp_path / "old")
    overrides = [f"data.root={tmp_path}/elsewhere", "trainer.tokens=128", *overrides]
    code, _, err = command(train_command.main, "run.name=old", *overrides)
    assert code == 1
    assert named in err
    assert not (tmp_path / "elsewhere").exists()


def test_a_renamed_and_moved_run_continues(command, tmp_path):
    longer = ["trainer.tokens=2560", "logger=wandb", "logger.mode=offline"]
    assert command(train_command.main, "run.name=a", *longer)[0] == 0
    run = tmp_path / "a"
    before = losses(run, "tokens", "grad_norm")
    wandb_id = (run / "wandb_id").read_text().strip()
    (run / "checkpoints" / "latest").write_text("step-00000015.ckpt\n")  # as if killed after it
    moved = tmp_path / "archive" / "b"
    moved.parent.mkdir()
    run.rename(moved)

    code, _, err = command(train_command.main, *longer, "run.name=b", f"run.root={moved.parent}")
    assert code == 0, err
    assert "from step 15 to 20" in err
    assert losses(moved, "tokens", "grad_norm") == before
    files = list(moved.glob(f"wandb/offline-run-*-{wandb_id}/run-{wandb_id}.wandb"))
    assert len(files) == 2
    points = [point for file in files for point in history(file) if "train_step" in point]
    assert sorted(point["step"] for point in points) == list(range(1, 21))
    assert RunFolder(moved).config()["run"]["name"] == "b"
    summary = json.loads((moved / "summary.json").read_text())
    assert summary["run"] == "b"
    assert all(Path(path).is_file() for path in summary["files"])
    assert not run.exists()
    assert command(eval_command.main, "run=b", f"root={moved.parent}")[0] == 0


def test_damaged_checkpoints_are_not_passed_over_for_a_new_start(command, tmp_path):
    assert command(train_command.main, "run.name=cut", "trainer.tokens=1280")[0] == 0
    rows = (tmp_path / "cut" / "metrics.jsonl").read_text()
    files = list((tmp_path / "cut" / "checkpoints").glob("step-*.ckpt"))
    damaged(tmp_path / "cut")
    code, _, err = command(train_command.main, "run.name=cut", "trainer.tokens=1280")
    assert code == 1
    assert all(file.name in err for file in files)
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == rows


def test_a_run_has_one_process(command, trained, tmp_path):
    trained("held")
    overrides = ["run.name=held", "trainer.tokens=128", f"data.root={tmp_path}/elsewhere"]
    with RunFolder(tmp_path / "held").locked():
        code, _, err = command(train_command.main, *overrides)
    assert code == 1
    assert "being trained by another process" in err
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_is_not_continued_on_other_data(command, tmp_path):
    other = tmp_path / "text"
    other.mkdir()
    for i in range(4):
        (other / f"{i}.txt").write_text(f"another text {i}\n" * 400)
    files = f"data.files={other}/*.txt"
    assert command(train_command.main, "run.name=bound", "trainer.tokens=128", files)[0] == 0
    (other / "4.txt").write_text("one more document\n" * 400)
    code, _, err = command(train_command.main, "run.name=bound", "trainer.tokens=128", files)
    assert code == 1
    assert "the text or the tokenizer changed" in err


def test_a_full_disk_leaves_the_earlier_checkpoint(command, tmp_path, text):
    assert command(train_command.main, "run.name=full", "trainer.tokens=640")[0] == 0
    before = latest(tmp_path / "full" / "checkpoints")
    config = tmp_path / "full" / "config.yaml"
    config.write_text(config.read_text().replace("tokens: 640", "tokens: 2560"))
    script = (
        "import resource, signal, sys, runpy\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({before.stat().st_size // 2},) * 2)\n"
        "runpy.run_path('train.py', run_name='__main__')\n"
    )
    arguments = [
        sys.executable,
        "-c",
        script,
        *SMALL,
        f"data.root={text}/prepared",
        f"data.files={text}/*.jsonl",
        f"run.root={tmp_path}",
        "run.name=full",
    ]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env={**os.environ}, timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert "could not write" in done.stderr
    assert "Traceback" not in done.stderr
    assert latest(tmp_path / "full" / "checkpoints") == before
    assert load(before)["global_step"] == 5
    assert command(train_command.main, "run.name=full")[0] == 0
