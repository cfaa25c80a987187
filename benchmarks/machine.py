"""What a measurement on the CPU has to say about where it was made."""

import os
import platform
import subprocess
from pathlib import Path

import torch

_ROOT = Path(__file__).resolve().parent.parent


def cpu_machine() -> dict:
    """Processor, threads, versions and code revision."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True
    )
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "revision": described.stdout.strip() or "unknown",
    }


def load() -> float:
    """Processes that ran or waited, mean of the last minute: called before the work, of others."""
    return round(os.getloadavg()[0], 1)


def describe(machine: dict) -> str:
    """One line for the title of a table or a picture."""
    return (
        f"{machine['cpu']}, {machine['threads']} threads on {machine['cores']} cores; "
        f"torch {machine['torch']}, Python {machine['python']}, revision {machine['revision']}"
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
