"""Groups are measured whole, cheapest first, saved one by one and within the time."""

import pytest

from benchmarks.crossover_measure import (
    DECODE,
    ROWS,
    Group,
    Instruments,
    expected_seconds,
    groups,
    measure,
    measured,
)
from benchmarks.timing import FEWEST_REPEATS, Budget

MIXERS = ["linear", "softmax"]
DIMS, LENGTHS, CONTEXTS = [4, 8], [8, 4], [6]


class Machine:
    """A clock that advances by what each call is said to take."""

    def __init__(self, milliseconds: float) -> None:
        self.now, self.milliseconds, self.saved, self.begun = 0.0, milliseconds, [], []

    def run(self, points: list[dict], seconds: float) -> list[Group]:
        def timer(call, count: int) -> float:
            assert call()
            self.now += count * self.milliseconds / 1e3
            return self.milliseconds

        left = groups(DIMS, LENGTHS, CONTEXTS, measured(points))
        return measure(
            left,
            points,
            MIXERS,
            16,
            Instruments(timer, lambda call: 100 + len(call())),
            Budget(seconds, lambda: self.now),
            lambda: self.saved.append(len(points)),
            self.begun.append,
        )


def test_short_rows_come_first_and_what_is_done_is_left_out():
    wanted = groups(DIMS, [8, 4, 8], CONTEXTS, set())
    rows = [Group(ROWS, d, n) for n in (4, 8) for d in DIMS]
    assert wanted == [Group(DECODE, 4, 6), Group(DECODE, 8, 6), *rows]
    assert groups(DIMS, LENGTHS, CONTEXTS, set(wanted[1:])) == wanted[:1]


def test_every_group_has_all_mixers_parts_and_passes_and_is_saved():
    machine, points = Machine(1.0), []
    assert machine.run(points, seconds=5.0) == []
    assert machine.begun == groups(DIMS, LENGTHS, CONTEXTS, set())
    assert machine.saved == [4, 8, 16, 24, 32, 40]
    keys = [(p["mixer"], p["head_dim"], p["length"], p["part"], p["pass"]) for p in points]
    assert len(set(keys)) == len(keys)
    rows = [p for p in points if p["pass"] != "decode"]
    assert all(len(p["milliseconds"]) >= FEWEST_REPEATS for p in points)
    assert {p["bytes"] for p in rows if p["pass"] == "forward"} == {101}
    states = {p["mixer"]: p["bytes"] for p in points if p["pass"] == "decode"}
    assert states["softmax"] == 6 * (2 * 16 * 4 + 16)


def test_a_second_run_measures_what_is_missing():
    machine, points = Machine(1.0), []
    machine.run(points, seconds=5.0)
    kept = [p for p in points if (p["length"], p["head_dim"]) != (8, 4)]
    again = Machine(1.0)
    again.run(kept, seconds=5.0)
    assert again.begun == [Group(ROWS, 4, 8)]
    assert measured(kept) == measured(points)


def test_what_there_is_no_time_for_is_returned():
    # Decoding is 4 calls and a row 8, each once to warm up and 3 times, here of 10 ms.
    machine, points = Machine(10.0), []
    left = machine.run(points, seconds=0.7)
    assert left == [Group(ROWS, 4, 8), Group(ROWS, 8, 8)]
    assert measured(points) == set(groups(DIMS, LENGTHS, CONTEXTS, set(left)))


def test_the_time_of_a_group_follows_from_the_next_shorter_one():
    points = [
        {"mixer": mixer, "head_dim": 4, "length": n, "part": "core", "pass": "forward",
         "milliseconds": [ms * n, 2 * ms * n]}
        for mixer, ms in (("linear", 1.0), ("softmax", 2.0))
        for n in (1000, 2000)
    ]  # fmt: skip
    # linear: 2 s at 2000, twice that at 4000; softmax: 4 s, four times that; five passes.
    assert expected_seconds(Group(ROWS, 4, 4000), points) == pytest.approx(5 * (4 + 16))
    assert expected_seconds(Group(ROWS, 8, 4000), points) == 0
    assert expected_seconds(Group(DECODE, 4, 4000), points) == 0
