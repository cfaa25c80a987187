"""Starts a script as two ranks of one training on this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def environments(world: int) -> list[dict[str, str]]:
    """The variables of each rank of a training on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {
        "PYTHONPATH": str(Path.cwd()),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
    }
    return [
        shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}
        for rank in range(world)
    ]


def run_two_ranks(script: Path, *arguments: str) -> list[list[str]]:
    """The lines that each of the two processes prints; fails with the errors of one that fails."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=environment | {"PYTHONPATH": f"{Path.cwd()}:{script.parent}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments(2)
    ]
    printed = []
    for process in ranks:
        try:
            out, errors = process.communicate(timeout=250)
        except subprocess.TimeoutExpired:
            for other in ranks:
                other.kill()
            raise
        assert process.returncode == 0, errors
        printed.append(out.splitlines())
    return printed
