"""Measures the mixers of `python -m benchmarks.crossover`, one head size and length after another.

All mixers of one head size and length take turns, so that a busy moment of the machine hits all of
them alike; such a group is measured whole or not at all, and saved before the next one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.mixer_calls import Call, build, decode_calls, row_calls
from benchmarks.timing import FEWEST_REPEATS, Budget, Timer, interleaved

ROWS, DECODE = "rows", "decode"
_PASSES_OF_ALL = FEWEST_REPEATS + 2  # one to record memory, one to see how long a call takes


@dataclass(frozen=True)
class Group:
    """What is measured together. kind: rows (forward, and with backward) or decode (one token).

    length: tokens of the row, or before the token.
    """

    kind: str
    head_dim: int
    length: int

    def __str__(self) -> str:
        return f"{self.kind} d={self.head_dim} n={self.length:,}"


@dataclass(frozen=True)
class Instruments:
    """How a call is measured; tests put others in their place.

    peak_bytes: what a call holds at most beyond its inputs.
    """

    timer: Timer
    peak_bytes: Callable[[Call], int]


def groups(
    head_dims: list[int], lengths: list[int], contexts: list[int], done: set[Group]
) -> list[Group]:
    """What is left to do, the cheapest first."""
    wanted = [Group(DECODE, d, n) for n in sorted(set(contexts)) for d in sorted(set(head_dims))]
    wanted += [Group(ROWS, d, n) for n in sorted(set(lengths)) for d in sorted(set(head_dims))]
    return [group for group in wanted if group not in done]


def measured(points: list[dict]) -> set[Group]:
    return {
        Group(DECODE if point["pass"] == "decode" else ROWS, point["head_dim"], point["length"])
        for point in points
    }


def measure(
    left: list[Group],
    points: list[dict],
    mixers: list[str],
    width: int,
    instruments: Instruments,
    budget: Budget,
    save: Callable[[], None],
    progress: Callable[[Group], None] = lambda group: None,
) -> list[Group]:
    """Appends to `points` what it measures and calls `save` after each group.

    A point is {"mixer", "head_dim", "length", "part", "pass", "milliseconds": of every repeat,
    "bytes"}; bytes of a decoding step are those of the state it carries.

    Returns:
        the groups for which there was no time, the last ones.
    """
    longest = max((group.length for group in left), default=0) + 1
    for number, group in enumerate(left):
        if expected_seconds(group, points) > budget.left():
            return left[number:]
        progress(group)
        weight = sum(_weight(later) for later in left[number:])
        share = budget.left() * _weight(group) / weight
        points += _measure_group(group, mixers, width, longest, instruments, share, budget)
        save()
    return []


def expected_seconds(group: Group, points: list[dict]) -> float:
    """The least that a group takes, from the next shorter one of its head size; 0 for the first.

    Softmax attention grows with the square of the length, all else in proportion.
    """
    shorter = [
        point
        for point in points
        if point["head_dim"] == group.head_dim
        and (point["pass"] == "decode") == (group.kind == DECODE)
        and point["length"] < group.length
    ]
    if not shorter:
        return 0.0
    nearest = max(point["length"] for point in shorter)
    ratio = group.length / nearest
    total = 0.0
    for point in shorter:
        if point["length"] == nearest:
            power = 2 if point["mixer"] == "softmax" and group.kind == ROWS else 1
            total += min(point["milliseconds"]) / 1e3 * ratio**power
    return total * _PASSES_OF_ALL


def _weight(group: Group) -> float:
    """Its share of the time: in proportion to the length of rows; decoding as short ones."""
    return 512.0 if group.kind == DECODE else float(group.length)


def _measure_group(
    group: Group,
    mixers: list[str],
    width: int,
    longest: int,
    instruments: Instruments,
    seconds: float,
    budget: Budget,
) -> list[dict]:
    calls: dict[tuple[str, str, str], Call] = {}
    sizes: dict[tuple[str, str, str], int] = {}
    end = budget.clock() + seconds
    for name in mixers:
        mixer = build(name, width, group.head_dim, longest)
        if group.kind == DECODE:
            of_mixer, held = decode_calls(mixer, group.length)
            sizes |= {(name, *key): held for key in of_mixer}
            for call in of_mixer.values():  # recording the memory of rows warms those up
                call()
        else:
            of_mixer = row_calls(mixer, group.length)
            sizes |= {(name, *key): instruments.peak_bytes(of_mixer[key]) for key in of_mixer}
        calls |= {(name, *key): call for key, call in of_mixer.items()}
    times = interleaved(calls, instruments.timer, max(0.0, end - budget.clock()), budget.clock)
    return [_point(group, key, times[key], sizes[key]) for key in calls]


def _point(group: Group, key: tuple[str, str, str], times: list[float], size: int) -> dict:
    name, part, way = key
    at: dict[str, Any] = {"mixer": name, "head_dim": group.head_dim, "length": group.length}
    return {**at, "part": part, "pass": way, "milliseconds": times, "bytes": size}
