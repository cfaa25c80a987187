"""Learning rates as functions of tokens."""

import pytest

from model.training.schedules import check_schedule, learning_rate_factor
from model.training.stages import stages_of
from tests.composing import composed


def rates(*overrides, steps=20, batch=4096):
    schedule = composed(*overrides).schedule
    return [
        learning_rate_factor(schedule, step * batch, steps * batch) for step in range(1, steps + 6)
    ]


def test_cosine_with_warmup():
    got = rates("schedule=cosine", f"schedule.warmup={4 * 4096}", "schedule.final=0.1")
    assert got[:4] == [0.25, 0.5, 0.75, 1.0]
    assert got[11] == pytest.approx(0.55)
    assert got[19] == pytest.approx(0.1)
    assert got[20:] == [got[19]] * 5
    assert got[4:20] == sorted(got[4:20], reverse=True)


def test_wsd_warms_up_stays_and_decays():
    got = rates("schedule.warmup=20%", "schedule.decay=25%", "schedule.final=0.2")
    assert got[:4] == [0.25, 0.5, 0.75, 1.0]
    assert got[3:15] == [1.0] * 12
    assert got[15:20] == pytest.approx([0.84, 0.68, 0.52, 0.36, 0.2])
    assert got[20:] == [got[19]] * 5


def test_wsd_can_fall_with_the_square_root():
    got = rates("schedule.warmup=0", "schedule.decay=100%", "schedule.shape=sqrt")
    assert got[4] == pytest.approx(1 - 0.25**0.5)


def test_a_run_that_minutes_shorten_is_told_apart():
    schedule = composed("schedule=cosine", "schedule.warmup=3000").schedule
    check_schedule(schedule, 3000)
    with pytest.raises(
        ValueError, match=r"^schedule.warmup \(3,000 tokens\) is longer than the 1,000"
    ):
        check_schedule(schedule, 1000, minutes=0.5)


def test_phases_longer_than_the_run_are_refused():
    schedule = composed("schedule.warmup=50%", "schedule.decay=60%").schedule
    with pytest.raises(ValueError, match=r"warmup \(500 tokens\) and .*decay \(600 tokens\)"):
        check_schedule(schedule, 1000)


def test_a_step_is_a_whole_number_of_rows():
    settings = composed("trainer.batch_tokens=4096")
    stages_of(settings.trainer, 1024)
    with pytest.raises(ValueError, match=r"whole number of rows.*use 3000 or 6000"):
        stages_of(settings.trainer, 3000)
