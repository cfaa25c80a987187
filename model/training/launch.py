"""Starts the processes of a training on this machine, one per device, where no launcher did.

    python train.py strategy=ddp strategy.devices=2

starts itself twice, with the variables that `torchrun` would set. (`torchrun` itself kills what has
not ended 30 seconds after a signal, in which a large checkpoint is not written.) Ctrl-C reaches
every process of a terminal by itself; SIGTERM and SIGUSR1 are passed on. If one process fails the
others are ended.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)
_SET_PARENT_DEATH_SIGNAL = 1  # linux/prctl.h
_PATIENCE = 10.0
"""Seconds that the others have after one failed: in a collective with it they never end."""

_STOPPED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
"""Exit codes of processes that saved and stopped; others may still be at it."""


def this_command() -> list[str]:
    """The command of this process; in a sweep, that of the one job."""
    from hydra.core.hydra_config import HydraConfig

    return [sys.executable, sys.argv[0], *HydraConfig.get().overrides.task]


def launch(command: Sequence[str], processes: int) -> int:
    """Runs `command` so many times as the ranks of one training; returns the exit code.

    It is that of the first process to fail, 0 where none does.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if "OMP_NUM_THREADS" not in os.environ:
        shared["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // processes))
    started: list[subprocess.Popen] = []

    def pass_on(number: int, _: object) -> None:
        for process in started:
            process.send_signal(number)

    previous = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        for rank in range(processes):
            own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
            started.append(subprocess.Popen(command, env=own, preexec_fn=_end_with_parent))
        return _wait(started)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(started: Sequence[subprocess.Popen]) -> int:
    failed, until = 0, float("inf")
    while True:
        codes = [process.poll() for process in started]
        if failed == 0 or failed in _STOPPED:
            failed = next((code for code in codes if code and code not in _STOPPED), 0)
            if failed:
                until = time.monotonic() + _PATIENCE
            else:
                failed = max(code or 0 for code in codes)
        if None not in codes:
            return failed if failed >= 0 else 128 - failed
        if time.monotonic() > until:
            for process in started:
                process.kill()
        time.sleep(0.1)


def _end_with_parent() -> None:
    """A process whose launcher is killed saves and stops, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
