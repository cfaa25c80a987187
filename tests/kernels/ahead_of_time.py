"""Runs code that compiles kernels in a process of its own: tests interpret them in theirs."""

import json
import os
import subprocess
import sys
from typing import Any


def run_compiling(code: str) -> Any:
    """The JSON that Python code prints on its last line."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
