"""The order of preparation and measurement, and what becomes of failures; on the CPU, tiny."""

import dataclasses
from contextlib import contextmanager

from test_kernel_calls import FLA

from benchmarks.kernel_cases import Case
from benchmarks.kernel_measure import Instruments, measure
from benchmarks.timing import Budget

CASES = [
    Case("gla", rows=1, length=64, heads=2, width=16),
    Case("retnet", rows=1, length=64, heads=2, width=16),
    Case("gla", rows=2, length=64, heads=2, width=16),
]


INSTRUMENTS = Instruments(
    lambda call, count: 5.0, lambda step: 1 + len(step()), device="cpu", backend="torch"
)


def run(cases=CASES, fla=FLA, instruments=INSTRUMENTS, seconds=1e6, clock=lambda: 0.0):
    return measure(cases, fla, instruments, Budget(seconds, clock))


def libraries(results) -> set[str]:
    return {entry["library"] for entry in results["times"]}


def test_every_case_is_timed_in_both_directions_with_its_shape():
    results = run()
    ours = [entry for entry in results["times"] if entry["library"] == "Braid"]
    assert [(e["op"], e["rows"], e["direction"]) for e in ours] == [
        ("gla", 1, "forward"), ("gla", 1, "training"),
        ("retnet", 1, "forward"), ("retnet", 1, "training"),
        ("gla", 2, "forward"), ("gla", 2, "training"),
    ]  # fmt: skip
    assert set(ours[0]["milliseconds"]) == {5.0}
    assert libraries(results) == {"Braid", "FLA", "flash"}


def test_a_library_that_does_not_run_here_is_noted_once_per_kernel():
    notes = run()["notes"]  # cuDNN needs a GPU
    assert [note.split(":")[0] for note in notes] == [
        "cudnn, gla T=64 D=16", "cudnn, retnet T=64 D=16"
    ]  # fmt: skip


def test_fla_is_searched_inside_the_given_context_and_after_braid():
    events = []

    @contextmanager
    def search():
        events.append("search")
        yield
        events.append("end")

    def gla(*arguments, **options):
        events.append("FLA")
        return FLA["gla"](*arguments, **options)

    run(fla={"gla": gla}, instruments=dataclasses.replace(INSTRUMENTS, search=search))
    assert events[:2] == ["search", "FLA"]
    assert "end" in events


def test_fla_that_computes_something_else_is_not_timed():
    def wrong(*arguments, **options):
        out, state = FLA["gla"](*arguments, **options)
        return 1.1 * out, state

    results = run(fla={"gla": wrong})
    assert "FLA" not in libraries(results)
    assert any("something else (relative error 1.0e-01" in note for note in results["notes"])


def test_a_gradient_that_differs_is_noted_and_timed():
    def wrong(q, k, v, g):
        return FLA["gla"](q, k, v.detach() + 1.1 * (v - v.detach()), g)

    results = run(fla={"gla": wrong})
    assert "FLA" in libraries(results)
    assert any("a gradient differs (relative error 1" in note for note in results["notes"])


def test_fla_that_fails_leaves_the_others():
    def broken(*arguments, **options):
        raise RuntimeError("out of shared memory\nmore")

    results = run(fla={"gla": broken})
    assert libraries(results) == {"Braid", "flash"}
    assert "FLA, gla T=64 D=16: not timed, out of shared memory" in results["notes"]


def test_cases_that_time_does_not_reach_are_named():
    now = [0.0]

    def slow(call, count: int) -> float:
        now[0] += 30.0
        return 1000.0

    instruments = dataclasses.replace(INSTRUMENTS, timer=slow)
    results = run(instruments=instruments, seconds=1000.0, clock=lambda: now[0])
    assert {entry["op"] for entry in results["times"]} == {"gla", "retnet"}
    assert results["notes"][-1] == "not timed, the time was over: gla T=64 D=16"


def test_fla_is_not_prepared_beyond_its_share_of_the_time():
    now = [0.0]

    def gla(*arguments, **options):
        now[0] += 760.0
        return FLA["gla"](*arguments, **options)

    fla = {"gla": gla, "retnet": FLA["retnet"]}
    results = run(fla=fla, seconds=1000.0, clock=lambda: now[0])
    assert "FLA, retnet T=64 D=16: not timed, no time left" in results["notes"]


def test_memory_is_measured_at_the_shape_of_the_targets_only(monkeypatch):
    monkeypatch.setattr("benchmarks.kernel_measure.TARGET_LENGTH", 64)
    assert run()["memory"] == []
    monkeypatch.setattr("benchmarks.kernel_measure.TARGET_WIDTH", 16)
    memory = run(CASES[:2])["memory"]
    assert [tuple(row.values()) for row in memory[:4]] == [
        ("gla", "Braid", "forward", 2), ("gla", "Braid", "training", 6),
        ("gla", "FLA", "forward", 2), ("gla", "FLA", "training", 6),
    ]  # fmt: skip
