"""Prepares and measures the cases of `python -m benchmarks.kernels` within a budget of time.

First every library compiles (and FLA searches), Braid and softmax attention before FLA, whose times
count only if its outputs equal Braid's. Then the cases are timed in order. What is left out, fails
or differs is a note in the results, never a silent gap.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.kernel_calls import BRAID, FLA, Call, make_calls, make_inputs
from benchmarks.kernel_cases import TARGET_LENGTH, TARGET_WIDTH, Case
from benchmarks.timing import Budget, Timer, interleaved, time_limit
from kernels.problems import relative_error

PREPARING, MEASURING = 0.75, 0.95  # of the budget are over when they end
AGREEMENT = 2e-2  # relative error between two libraries in bfloat16
DIRECTIONS = ("forward", "training")


@dataclass(frozen=True)
class Instruments:
    """How this machine is measured; tests put others in their place."""

    timer: Timer
    extra_bytes: Callable[[Callable[[], tuple[torch.Tensor, ...]]], int]
    device: str = "cuda"
    backend: str = "triton"
    search: Callable[[], AbstractContextManager] = nullcontext  # around FLA's first calls


def measure(
    cases: list[Case],
    fla: dict[str, Callable[..., Any]],
    instruments: Instruments,
    budget: Budget,
    progress: Callable[[Iterable, str], Iterable] = lambda items, _: items,
) -> dict[str, list]:
    """{"times": .., "memory": .., "notes": ..}, lists of flat dictionaries and of sentences."""
    notes: list[str] = []
    ready = prepare(cases, fla, instruments, budget, notes, progress)
    memory = measure_memory(cases, fla, instruments, ready)
    times = []
    for number, case in enumerate(progress(cases, "measure")):
        left = budget.left(MEASURING)
        if left <= 0:
            names = ", ".join(describe(c) for c in cases[number:])
            notes.append(f"not timed, the time was over: {names}")
            break
        calls = _calls(case, fla, instruments)
        calls = {name: call for name, call in calls.items() if name in ready[case.compiled]}
        for name in list(calls):
            _first(calls, name, case, left, notes)
        if not calls:
            continue
        passes = {(name, way): getattr(calls[name], way) for name in calls for way in DIRECTIONS}
        share = budget.left(MEASURING) / (len(cases) - number)
        found = interleaved(passes, instruments.timer, share, budget.clock)
        times += [
            {**asdict(case), "library": name, "direction": way, "milliseconds": milliseconds}
            for (name, way), milliseconds in found.items()
        ]
    return {"times": times, "memory": memory, "notes": notes}


def prepare(
    cases: list[Case],
    fla: dict[str, Callable[..., Any]],
    instruments: Instruments,
    budget: Budget,
    notes: list[str],
    progress: Callable[[Iterable, str], Iterable] = lambda items, _: items,
) -> dict[tuple, set[str]]:
    """Compiles everything once; the libraries that can be timed, by `Case.compiled`."""
    first: dict[tuple, Case] = {}
    for case in cases:
        first.setdefault(case.compiled, case)
        if case.fla and not first[case.compiled].fla:
            first[case.compiled] = case
    ready: dict[tuple, set[str]] = {key: set() for key in first}
    for key, case in progress(list(first.items()), "compile"):
        calls = _calls(case, {}, instruments)
        for name in list(calls):
            if _first(calls, name, case, budget.left(MEASURING), notes):
                ready[key].add(name)
    with instruments.search():
        for key, case in progress([(k, c) for k, c in first.items() if c.op in fla], "FLA"):
            calls = _calls(case, fla, instruments)
            if FLA not in calls or BRAID not in ready[key]:
                continue
            if not _first(calls, FLA, case, budget.left(PREPARING), notes):
                continue
            output, gradient = _disagreements(calls)
            if output > AGREEMENT or output != output:
                notes.append(
                    f"{FLA}, {describe(case)}: not timed, it computes something else "
                    f"(relative error {output:.1e})"
                )
                continue
            ready[key].add(FLA)
            if gradient > AGREEMENT or gradient != gradient:
                notes.append(
                    f"{FLA}, {describe(case)}: a gradient differs (relative error {gradient:.1e})"
                )
    return ready


def measure_memory(
    cases: list[Case],
    fla: dict[str, Callable[..., Any]],
    instruments: Instruments,
    ready: dict[tuple, set[str]],
) -> list[dict]:
    """Bytes beyond inputs and results, for Braid and FLA at the shape of the targets."""
    memory = []
    for case in cases:
        if case.packed or (case.length, case.width) != (TARGET_LENGTH, TARGET_WIDTH):
            continue
        calls = _calls(case, fla, instruments)
        for name in (BRAID, FLA):
            if name in calls and name in ready[case.compiled]:
                for way in DIRECTIONS:
                    bytes_ = instruments.extra_bytes(getattr(calls[name], way))
                    row = {"op": case.op, "library": name, "direction": way, "bytes": bytes_}
                    memory.append(row)
    return memory


def describe(case: Case) -> str:
    packed = ", packed" if case.packed else ""
    return f"{case.op} T={case.length} D={case.width}{packed}"


def _calls(
    case: Case, fla: dict[str, Callable[..., Any]], instruments: Instruments
) -> dict[str, Call]:
    return make_calls(case, make_inputs(case, instruments.device), fla, instruments.backend)


def _first(calls: dict[str, Call], name: str, case: Case, seconds: float, notes: list[str]) -> bool:
    """Runs a call once; where it fails, it is removed from `calls` and the reason noted."""
    try:
        with time_limit(seconds):
            calls[name].training()
            calls[name].forward()
    except Exception as error:  # a peer may fail with anything, and the others still count
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        notes.append(f"{name}, {describe(case)}: not timed, {reason}")
        del calls[name]
        return False
    return True


def _disagreements(calls: dict[str, Call]) -> tuple[float, float]:
    """Relative errors between FLA and Braid: of the outputs, and the largest of the gradients."""
    pairs = zip(calls[FLA].training(), calls[BRAID].training(), strict=True)
    output, *gradients = (relative_error(theirs, ours) for theirs, ours in pairs)
    return output, max(gradients, key=lambda error: (error != error, error))
