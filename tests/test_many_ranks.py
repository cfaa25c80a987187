"""train.py in several processes: what one process trains, whoever continues it and however."""

import os
import signal
import subprocess
import sys
import time

import pytest

from model.training.checkpoints import latest
from model.training.metrics_file import is_validation, read
from tests.commands import losses, small_run

TOKENS = "trainer.tokens=5120"


def started(text, tmp_path, *more):
    arguments = [sys.executable, "train.py", *small_run(text, tmp_path), TOKENS, *more]
    return subprocess.Popen(
        arguments,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ddp(devices):
    return ["strategy=ddp", f"strategy.devices={devices}"]


def wait_for_steps(process, run, steps):
    end = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or len(losses(run)) < steps:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for step, values in expected.items():
        assert found[step] == pytest.approx(values, rel=1e-5), step


@pytest.fixture
def whole(text, tmp_path):
    """Rows of metrics.jsonl of a run of one process."""
    process = started(text, tmp_path, "run.name=whole")
    assert process.wait(timeout=120) == 0
    return read(tmp_path / "whole" / "metrics.jsonl")


def by_step(rows, *keys, validation=False):
    own = [row for row in rows if is_validation(row) == validation]
    return {row["step"]: tuple(row[key] for key in keys) for row in own}


@pytest.mark.long
def test_a_run_goes_from_1_to_2_to_4_processes_and_back(text, tmp_path, whole):
    run = tmp_path / "moved"
    for processes, until in ((["strategy=single"], 6), (ddp(2), 14), (ddp(4), 24)):
        process = started(
            text, tmp_path, "run.name=moved", "trainer.checkpoint_every=1", *processes
        )
        wait_for_steps(process, run, until)
        process.send_signal(signal.SIGUSR1)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGUSR1, errors
        assert errors.count("the same command continues") == 1
        assert "Traceback" not in errors
        assert len(losses(run)) < 40
    process = started(text, tmp_path, "run.name=moved")
    assert process.wait(timeout=120) == 0
    moved = read(run / "metrics.jsonl")
    for keys in (("loss", "grad_norm"), ("learning_rate", "tokens")):
        assert_same(by_step(moved, *keys), by_step(whole, *keys))
    keys = ["val_nats_per_token", "val_bits_per_byte", "tokens"]
    assert_same(by_step(moved, *keys, validation=True), by_step(whole, *keys, validation=True))


@pytest.mark.long
def test_a_killed_rank_ends_the_others_and_the_command_goes_on(text, tmp_path, whole):
    run = tmp_path / "killed"
    process = started(text, tmp_path, "run.name=killed", *ddp(2))
    wait_for_steps(process, run, 8)
    children = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert not any(os.path.exists(f"/proc/{child}") for child in children)
    process = started(text, tmp_path, "run.name=killed", *ddp(2))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    killed = read(run / "metrics.jsonl")
    assert_same(by_step(killed, "loss"), by_step(whole, "loss"))


@pytest.mark.long
def test_processes_whose_launcher_is_killed_save_and_stop(text, tmp_path):
    run = tmp_path / "orphans"
    process = started(text, tmp_path, "run.name=orphans", "trainer.tokens=1e6", *ddp(2))
    wait_for_steps(process, run, 8)
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).stdout:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert latest(run / "checkpoints").name == f"step-{max(losses(run)):08d}.ckpt"


@pytest.mark.long
def test_every_job_of_a_sweep_starts_its_processes(text, tmp_path):
    name = "run.name=lr-${optimizer.lr}"
    process = started(text, tmp_path, "-m", name, "optimizer.lr=0.001,0.002", *ddp(2))
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    for rate in ("0.001", "0.002"):
        assert len(losses(tmp_path / f"lr-{rate}")) == 40


def test_a_mistake_is_told_once(text, tmp_path):
    process = started(
        text, tmp_path, "trainer.batch_tokens=96", "strategy=ddp", "strategy.devices=2"
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors == (
        "error: batch_tokens=96 are 3 rows of 32 tokens, which 2 processes cannot share equally; "
        "use 64 or 128\n"
    )
