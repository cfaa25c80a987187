"""Repeats are interleaved and end with the budget; clocks are simulated."""

import signal

import pytest
import torch

from benchmarks.timing import (
    FEWEST_REPEATS,
    MOST_REPEATS,
    Budget,
    cpu_milliseconds,
    cpu_peak_bytes,
    interleaved,
    time_limit,
)


class Machine:
    """A clock that advances by what each call is said to take, and a log of the calls."""

    def __init__(self, **milliseconds: float) -> None:
        self.now, self.milliseconds, self.log = 0.0, milliseconds, []
        self.calls = {name: name for name in milliseconds}

    def clock(self) -> float:
        return self.now

    def timer(self, call: str, count: int) -> float:
        self.log.append((call, count))
        self.now += count * self.milliseconds[call] / 1e3
        return self.milliseconds[call]

    def repeats(self, seconds: float) -> dict[str, list[float]]:
        return interleaved(self.calls, self.timer, seconds, self.clock)


def test_repeats_stop_when_the_time_is_over():
    machine = Machine(a=100.0, b=300.0)
    found = machine.repeats(4.0)  # 0.4 s to start with, then 0.4 s a repeat
    assert {name: len(times) for name, times in found.items()} == {"a": 9, "b": 9}
    assert machine.now == pytest.approx(4.0)


def test_a_few_repeats_are_made_even_without_time():
    found = Machine(a=100.0).repeats(0.0)
    assert found == {"a": [100.0] * FEWEST_REPEATS}


def test_there_are_never_more_repeats_than_needed():
    assert len(Machine(a=100.0).repeats(1e6)["a"]) == MOST_REPEATS


def test_calls_take_turns_and_each_comes_first_in_turn():
    machine = Machine(a=50.0, b=50.0, c=50.0)
    machine.repeats(0.0)
    order = "".join(call for call, _ in machine.log[3:])
    assert order == "abcbcacab"


def test_short_calls_are_timed_several_at_a_time():
    machine = Machine(short=0.1, middle=1.0, long=50.0)
    machine.repeats(0.0)
    assert dict(machine.log[3:6]) == {"short": 10, "middle": 3, "long": 1}


def test_a_budget_counts_from_its_start_and_by_shares():
    machine = Machine(a=1000.0)
    machine.now = 5.0
    budget = Budget(10.0, machine.clock)
    machine.now += 4.0
    assert budget.left() == pytest.approx(6.0)
    assert budget.left(0.5) == pytest.approx(1.0)
    machine.now += 20.0
    assert budget.left() == 0.0


def test_what_takes_too_long_is_stopped():
    with pytest.raises(TimeoutError, match="not finished after 60 s"), time_limit(60):
        signal.raise_signal(signal.SIGALRM)


def test_no_alarm_is_left_behind():
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


def test_nothing_starts_without_time():
    with pytest.raises(TimeoutError, match="no time left"), time_limit(0):
        pytest.fail("it started")


def test_a_call_is_made_as_often_as_asked():
    made = []
    assert cpu_milliseconds(lambda: made.append(1), 3) > 0
    assert len(made) == 3


def test_peak_memory_counts_temporaries_and_results_but_no_inputs():
    x = torch.ones(1000, 100)

    def step() -> tuple[torch.Tensor, ...]:
        doubled = x + x  # 400,000 bytes, as all of them
        result = doubled + x
        del doubled
        return (result + x,)

    assert cpu_peak_bytes(step) == 800_000
    assert cpu_peak_bytes(lambda: x) == 0
