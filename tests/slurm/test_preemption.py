"""slurm/pretrain.sbatch on a real SLURM: whatever interrupts a job, its run ends like one that was
not interrupted, no step is trained twice or left out, and no job is started again for ever."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from model.training.metrics_file import is_validation, read
from tests.commands import small_run

pytestmark = pytest.mark.slurm

TOKENS = ["trainer.tokens=51200", "trainer.checkpoint_every=20"]  # 400 steps


class Job:
    """A run on both nodes, submitted with slurm/pretrain.sbatch."""

    def __init__(self, slurm, text, folder, *more, options=(), environment=()):
        self.slurm, self.run, self.log = slurm, folder / "job", folder / "job.log"
        exports = ",".join(["ALL", "OMP_NUM_THREADS=1", *environment])
        self.number = slurm.submit(
            *("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", f"--export={exports}"),
            *(f"--output={self.log}", *options, "slurm/pretrain.sbatch"),
            *(*small_run(text, folder), "run.name=job", *TOKENS, *more),
        )

    @property
    def steps(self):
        if not (self.run / "metrics.jsonl").exists():
            return 0
        return max((row["step"] for row in read(self.run / "metrics.jsonl")), default=0)

    def wait_for_step(self, step):
        self.slurm.wait(lambda: self.steps >= step)

    def end(self, seconds=180):
        state = self.slurm.wait_for_end(self.number, seconds)
        return state, self.log.read_text()

    def processes(self):
        """Ranks of the job, by number."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"train.py" in command and b"SLURM_JOB_ID=%d" % self.number in variables:
                ranks = [v for v in variables if v.startswith(b"SLURM_PROCID=")]
                if ranks and b"srun" not in command:
                    found[int(ranks[0].split(b"=")[1])] = int(entry.name)
        return found


@pytest.fixture(scope="module")
def uninterrupted(slurm, text, tmp_path_factory):
    job = Job(slurm, text, tmp_path_factory.mktemp("whole"))
    state, log = job.end()
    assert state == "COMPLETED", log
    assert "requeued" not in log
    return read(job.run / "metrics.jsonl")


def assert_like(job, uninterrupted):
    """Bit for bit, each step once; what is measured in seconds aside."""
    found = [_compared(row) for row in read(job.run / "metrics.jsonl")]
    assert found == [_compared(row) for row in uninterrupted]


def _compared(row):
    kind = "validation" if is_validation(row) else "step"
    return kind, {k: v for k, v in row.items() if "second" not in k}


def test_signals_at_ten_random_moments(slurm, text, tmp_path, uninterrupted):
    """During imports, data, training, validation, saving: wherever they fall."""
    rng = random.Random(0)
    job = Job(slurm, text, tmp_path)
    sent = 0
    while sent < 10:
        slurm.wait(lambda: slurm.state(job.number) in ("RUNNING", "PENDING"), log=job.log)
        if slurm.state(job.number) == "PENDING":
            slurm.start_now(job.number)
            slurm.wait(lambda: slurm.state(job.number) == "RUNNING", log=job.log)
        time.sleep(rng.uniform(0.5, 9))
        slurm.cancel(job.number, "--signal=USR1")
        slurm.wait(lambda: slurm.state(job.number) != "RUNNING", log=job.log)
        sent += 1
    state, log = job.end()
    assert state == "COMPLETED", log
    assert "Traceback" not in log
    assert_like(job, uninterrupted)


def test_preemption_by_a_higher_partition(slurm, text, tmp_path, uninterrupted):
    job = Job(slurm, text, tmp_path)
    job.wait_for_step(40)
    urgent = slurm.submit(
        *("--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    )
    assert slurm.wait_for_end(urgent) == "COMPLETED"
    state, log = job.end()
    assert state == "COMPLETED", log
    assert "Stopped by SIGUSR1" in log
    assert_like(job, uninterrupted)


def test_a_rank_that_is_killed(slurm, text, tmp_path, uninterrupted):
    job = Job(slurm, text, tmp_path)
    job.wait_for_step(50)
    os.kill(job.processes()[1], signal.SIGKILL)
    state, log = job.end()
    assert state == "COMPLETED", log
    # 137, or 143 where SLURM ended the other rank before it saw the first one gone.
    assert re.findall(r"exit code (137|143) after step \d+: requeued", log), log
    assert log.count("== job") == 2
    assert_like(job, uninterrupted)


def test_a_job_that_always_fails_is_started_once(slurm, text, tmp_path):
    job = Job(slurm, text, tmp_path, "trainer.batch_tokens=96")
    state, log = job.end()
    assert state == "FAILED"
    assert log.count("== job") == 1
    assert log.count("which 2 processes cannot share equally; use 64 or 128") == 1
    assert "not requeued" in log


def test_restarts_have_a_cap(slurm, text, tmp_path):
    job = Job(slurm, text, tmp_path, environment=["BRAID_MAX_RESTARTS=1"])
    for _ in range(2):
        job.wait_for_step(job.steps + 5)
        slurm.cancel(job.number, "--signal=USR1")
        slurm.wait(lambda: slurm.state(job.number) in ("PENDING", "FAILED"))
        if slurm.state(job.number) == "PENDING":
            slurm.start_now(job.number)
    state, log = job.end()
    assert state == "FAILED"
    assert log.count("== job") == 2
    assert "not requeued: started again 1 times already (BRAID_MAX_RESTARTS=1)" in log


def test_the_time_limit(slurm, text, tmp_path):
    """Limits are whole minutes, and the warning may come up to one earlier than asked for."""
    long = "trainer.tokens=1e7"
    job = Job(slurm, text, tmp_path, long, options=["--time=1", "--signal=USR1@30"])

    def is_stopped():
        if slurm.state(job.number) == "PENDING" and job.log.exists():
            slurm.start_now(job.number)  # the warning came before training
        return job.log.exists() and "Stopped by SIGUSR1" in job.log.read_text()

    slurm.wait(is_stopped, 180, job.log)
    slurm.wait(lambda: slurm.state(job.number) == "PENDING", log=job.log)
    log = job.log.read_text()
    assert job.steps > 0
    assert f"exit code 138 after step {job.steps}: requeued" in log, log
    slurm.cancel(job.number)
