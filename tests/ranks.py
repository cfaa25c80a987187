"""Starts a script as two ranks of one training on this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_two_ranks(script: Path, *arguments: str) -> list[list[str]]:
    """The lines that each of the two processes prints; fails with the errors of one that fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {
        "PYTHONPATH": f"{Path.cwd()}:{script.parent}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
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
