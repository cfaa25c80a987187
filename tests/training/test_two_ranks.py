import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from model.training.checkpoints import latest
from model.training.metrics_file import is_validation, read


@pytest.mark.long
def test_two_ranks_stop_fail_and_continue_alike(tmp_path):
    """A signal at rank 1 only, then a full disk at rank 0 only, then to the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {
        "PYTHONPATH": f"{Path.cwd()}:{Path(__file__).parent}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    script = str(Path(__file__).with_name("two_ranks.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(tmp_path)],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        try:
            out, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            for other in ranks:
                other.kill()
            raise
        assert process.returncode == 0, errors
        assert out.splitlines() == [
            f"stopped after 7 by {int(signal.SIGUSR1)}",
            "failed: True",
            "finished, trained from 7",
        ]
    assert latest(tmp_path / "checkpoints").name == "step-00000012.ckpt"
    rows = read(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if not is_validation(row)] == [4, 7, 8, 12]
    assert [row["step"] for row in rows if is_validation(row)] == [7]
