"""Interleaved repeats within a budget of time, and what clocks and memory say of a call."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

FEWEST_REPEATS = 3
MOST_REPEATS = 20
_SAMPLE_MILLISECONDS = 3.0  # shorter calls are timed several at a time: launches overlap
_MOST_CALLS = 10


@dataclass
class Budget:
    """Seconds that may pass from its creation on."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    def left(self, share: float = 1.0) -> float:
        """Until this share of it is used up; never negative."""
        return max(0.0, self.start + share * self.seconds - self.clock())


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread when the time is over."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not finished after {seconds:.0f} s")

    if seconds <= 0:
        raise TimeoutError("no time left")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


Timer = Callable[[Callable[[], Any], int], float]


def interleaved(
    calls: dict[Any, Callable[[], Any]],
    timer: Timer,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[Any, list[float]]:
    """Milliseconds of every call, in repeats that all calls share.

    Each repeat runs every call and starts with another one, so that a slow moment of the machine
    hits all alike. At least FEWEST_REPEATS, then until `seconds` are over, at most MOST_REPEATS.

    Args:
        timer: (call, n) -> milliseconds of one of n calls in a row.
    """
    end = clock() + seconds
    names = list(calls)
    counts = {}
    for name in names:
        first = timer(calls[name], 1)
        counts[name] = max(1, min(_MOST_CALLS, round(_SAMPLE_MILLISECONDS / max(first, 1e-3))))
    times: dict[Any, list[float]] = {name: [] for name in names}
    for repeat in range(MOST_REPEATS):
        if repeat >= FEWEST_REPEATS and clock() >= end:
            break
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(timer(calls[name], counts[name]))
    return times


def cpu_milliseconds(call: Callable[[], Any], count: int) -> float:
    """Of one of `count` calls in a row, by the wall clock."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) * 1e3 / count


def cpu_peak_bytes(step: Callable[[], Any]) -> int:
    """The most that a step has allocated at any moment, results included, its inputs not.

    Counted from every allocation that torch's profiler records, temporaries inside of operators
    too: the same on any machine, however busy.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or every recording prints two lines
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        returned = step()  # kept: what it returns is freed after the recording
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        recorded.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    del returned
    changes = [event for event in events if event.get("name") == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def gpu_milliseconds(call: Callable[[], Any], count: int) -> float:
    """Of one of `count` calls in a row, by events on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def gpu_extra_bytes(step: Callable[[], tuple[torch.Tensor, ...]]) -> int:
    """The most that a step holds at any moment beyond its inputs and what it returns."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    returned = step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    return peak - before - sum(tensor.nbytes for tensor in returned)
