"""Work shared by processes: order, errors, and what happens when one of them dies."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from data.pool import in_order

ROOT = Path(__file__).parents[2]


def work(task):
    number, delay = task
    time.sleep(delay)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number, os.getpid()


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_come_in_the_order_of_the_tasks_from_all_processes():
    tasks = [(number, 0.2 if number == 0 else 0.0) for number in range(20)]
    results = list(in_order(work, tasks, 2))
    assert [number for number, _ in results] == list(range(20))
    processes = {process for _, process in results}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_one_process_is_this_one_and_takes_a_task_at_a_time():
    taken = []
    tasks = (taken.append(number) or (number, 0.0) for number in range(5))
    results = in_order(work, tasks, 1)
    assert next(results) == (0, os.getpid())
    assert taken == [0]


def test_few_tasks_are_taken_ahead():
    taken = []
    tasks = (taken.append(number) or (number, 0.0) for number in range(50))
    with closing(in_order(work, tasks, 2)) as results:
        next(results)
        assert len(taken) <= 4


def test_an_error_of_a_task_comes_out_and_the_processes_end():
    before = len(multiprocessing.active_children())
    with pytest.raises(ValueError, match="-3 is negative"):
        list(in_order(work, [(number, 0.0) for number in (1, -3, 2, 4, 5, 6)], 2))
    assert len(multiprocessing.active_children()) == before


def test_a_killed_process_is_told_with_what_to_type():
    with pytest.raises(ChildProcessError, match=r"killed by SIGKILL, perhaps for lack of.*=N"):
        list(in_order(die, range(100), 2))


SCRIPT = """
import signal
from data.pool import in_order
from tests.data.test_pool import work
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    for number, process in in_order(work, ((n, 0.01) for n in range(10_000)), 2):
        if number < 2:
            print(process, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_the_one_that_started_them(tmp_path, number):
    """SIGINT reaches the whole group, as from a terminal."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        workers = [int(process.stdout.readline()) for _ in range(2)]
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -number
    assert errors.count("Traceback") == (number == signal.SIGINT)  # of the first one alone
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
