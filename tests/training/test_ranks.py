"""The place of a process, ports of jobs, what rank 0 decides, the number of processes."""

import re
import signal
import subprocess
import sys

import pytest
import torch

from model.training.config import StrategySettings
from model.training.devices import check_shared, processes_per_node
from model.training.ranks import Place, place_in, port_of
from model.training.stages import Stage
from tests.ranks import environments, run_two_ranks

CPU = torch.device("cpu")
TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_a_task_of_srun():
    assert place_in(TASK) == Place(3, 4, 1, 1, "gpu07", port_of(4711), "srun")
    given = TASK | {"MASTER_ADDR": "head", "MASTER_PORT": "12345"}
    assert place_in(given) == Place(3, 4, 1, 1, "head", 12345, "srun")


def test_a_process_of_torchrun_also_inside_of_a_job():
    expected = Place(1, 2, 1, 0, "localhost", 29500, "torchrun")
    assert place_in(TORCHRUN) == place_in(TASK | TORCHRUN) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # a batch script
        TASK | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    ],
)
def test_a_process_that_is_alone(environment):
    assert place_in(environment) == Place()


def test_half_an_environment_is_refused():
    with pytest.raises(ValueError, match="set, but not LOCAL_RANK, MASTER_ADDR, MASTER_PORT"):
        place_in({"RANK": "0", "WORLD_SIZE": "2"})


def test_ports_of_jobs():
    ports = [port_of(job) for job in range(1, 200_001)]
    assert min(ports) >= 10_000
    assert max(ports) <= 32_767
    for apart in range(1, 1001):  # neighbours, and tasks of an array: each has a job id of its own
        assert all(a != b for a, b in zip(ports[:1000], ports[apart:], strict=False))


def settings(kind="ddp", devices="auto", nodes=1):
    return StrategySettings(kind=kind, devices=devices, nodes=nodes)


@pytest.mark.parametrize(
    ("strategy", "world", "processes"),
    [
        (settings("single", 1), 1, 1),
        (settings(), 1, 1),
        (settings(devices=3), 1, 3),
        (settings(), 4, 4),
        (settings(nodes=2), 4, 2),
        (settings(devices=2, nodes=2), 4, 2),
    ],
)
def test_processes_per_node(strategy, world, processes):
    place = Place(0, world, launched_by="srun")
    assert processes_per_node(strategy, place, CPU) == processes


@pytest.mark.parametrize(
    ("strategy", "world", "message"),
    [
        (settings("single", 1), 2, "strategy=single is one process, but srun started 2"),
        (settings("single", 2), 1, "not strategy.devices=2 strategy.nodes=1; type strategy=ddp"),
        (settings(nodes=2), 1, "strategy.nodes=2: processes on several nodes are started by srun"),
        (settings(nodes=2), 3, "started 3 processes, which strategy.nodes=2 cannot share"),
        (settings(devices=3), 2, "strategy.devices=3 are 3 processes, but srun started 2"),
    ],
)
def test_settings_that_do_not_fit_what_was_started(strategy, world, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        processes_per_node(strategy, Place(0, world, launched_by="srun"), CPU)


def test_rows_that_cannot_be_shared():
    stage = Stage(0, 10, 0, 64, 5 * 64, None, None, None)
    check_shared([stage], 5)
    with pytest.raises(ValueError, match=re.escape("5 rows of 64 tokens, which 2 processes")) as e:
        check_shared([stage], 2)
    assert "use 256 or 384" in str(e.value)
    with pytest.raises(ValueError, match=r"use 512$"):
        check_shared([stage], 8)


DECIDING = """
import os, signal, sys, time
from model.training.ranks import ranks
team = ranks()
time.sleep(0.5 * team.place.rank)  # they need not start together
print(team.decided(lambda: ("first", team.place.rank)))
print(team.decided(lambda: [sys.argv[1]]))
def fail():
    raise ValueError("a mistake")
if sys.argv[1] == "fail":
    team.decided(fail)
if sys.argv[1] == "die":
    team.decided(lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_what_rank_0_decides(tmp_path):
    (tmp_path / "script.py").write_text(DECIDING)
    printed = run_two_ranks(tmp_path / "script.py", "go")
    assert printed == [["('first', 0)", "['go']"]] * 2


@pytest.mark.parametrize(("way", "code"), [("fail", 1), ("die", -signal.SIGKILL)])
def test_where_rank_0_fails_it_alone_says_why(tmp_path, way, code):
    (tmp_path / "script.py").write_text(DECIDING)
    processes = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py"), way],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [code, 1]
    assert ("ValueError: a mistake" in errors[0]) == (way == "fail")
    assert "Traceback" not in errors[1]
