"""Settings of the process itself that make a CPU faster, to be made before torch is imported."""

import ctypes
import os
import platform


def tune_process() -> None:
    """Asks the OpenMP and C libraries for what suits training on a few shared cores.

    Changes no result. What the user has set in the environment stays.
    """
    # Threads that wait for each other spin for a moment, then sleep. GNU OpenMP spins so long that
    # one busy neighbour on a core slows every small operation; measured: 1,450 tokens/s became
    # 2,400 beside one busy process, and nothing changed on a quiet machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if platform.libc_ver()[0] == "glibc" and not any(k.startswith("MALLOC_") for k in os.environ):
        # Large blocks are kept for the next step instead of being handed back and faulted in
        # again; measured: 5 to 15 % more tokens/s.
        libc = ctypes.CDLL(None)
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
