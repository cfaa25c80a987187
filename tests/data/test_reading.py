"""The order of a run with sources, buckets and stages: complete, and a function of the step."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.mixture import whole_shares
from data.order import window
from data.reading import Reading, ReadSource, ReadStage

ALONE = ReadSource("", (20,), (1,))


def rows_of(reading, steps, world=1):
    """(stage, source, bucket, epoch, block, part) of every row of the first steps, in order."""
    rows = []
    for step in range(steps):
        for rank in range(world):
            at = reading.places(step, rank, world)
            columns = (at.source, at.bucket, at.epoch, at.block, at.part)
            rows += [(at.stage, *map(int, row)) for row in zip(*columns, strict=True)]
    return rows


def test_one_source_in_one_stage_is_read_in_the_order_of_its_windows():
    reading = Reading([ALONE], [ReadStage(None, 6, 4, (1,))], seed=5)
    epoch, index = window(np.arange(60), 20, 5)
    expected = [(0, 0, 0, int(e), int(i), 0) for e, i in zip(epoch, index, strict=True)]
    assert rows_of(reading, 10) == expected


@st.composite
def runs(draw):
    count = draw(st.integers(1, 3))
    sources = []
    for number in range(count):
        blocks = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
        shares = tuple(draw(st.integers(1, 4)) for _ in blocks)
        sources.append(ReadSource(f"s{number}", blocks, shares))
    stages = []
    for _ in range(draw(st.integers(1, 3))):
        shares = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count).filter(any))
        steps, length = draw(st.integers(1, 9)), draw(st.sampled_from([2, 4, 8]))
        stages.append(ReadStage(steps, draw(st.sampled_from([6, 12])), length, tuple(shares)))
    return Reading(sources, stages, draw(st.integers(0, 9)))


@settings(max_examples=25, deadline=None)
@given(reading=runs())
def test_every_row_is_read_once_per_epoch_and_epochs_follow_one_another(reading):
    steps = sum(stage.steps for stage in reading.stages)
    rows = rows_of(reading, steps)
    assert len(set(rows)) == len(rows) == sum(s.steps * s.rows for s in reading.stages)
    # Rows of two stages may be cut differently, but no block is read in two stages of one epoch.
    by_block = {}
    for stage, source, bucket, epoch, block, _ in rows:
        assert by_block.setdefault((source, bucket, epoch, block), stage) == stage
    for s, source in enumerate(reading.sources):
        for b, size in enumerate(source.blocks):
            seen = [(k[2], k[3]) for k in by_block if k[:2] == (s, b)]
            last = max((epoch for epoch, _ in seen), default=0)
            for epoch in range(last):
                # Only blocks at a border of stages may have been skipped: less than one a stage.
                blocks = {block for e, block in seen if e == epoch}
                assert size - len(blocks) <= len(reading.stages)
            assert all(0 <= block < size for _, block in seen)


@settings(max_examples=15, deadline=None)
@given(reading=runs(), world=st.sampled_from([2, 3, 6]))
def test_ranks_share_the_rows_of_a_single_process(reading, world):
    steps = sum(stage.steps for stage in reading.stages)
    assert rows_of(reading, steps, world) == rows_of(reading, steps)
    samples = [reading.places(step, 0, 1).sample for step in range(steps)]
    assert np.concatenate(samples).tolist() == list(range(sum(map(len, samples))))


@settings(max_examples=15, deadline=None)
@given(reading=runs(), data=st.data())
def test_amounts_are_what_is_read(reading, data):
    steps = data.draw(st.integers(0, sum(stage.steps for stage in reading.stages)))
    rows = rows_of(reading, steps)
    for s, source in enumerate(reading.amounts(steps)):
        for b, amount in enumerate(source):
            own = [row for row in rows if row[1:3] == (s, b)]
            tokens = sum(reading.stages[row[0]].seq_len for row in own)
            assert (amount.rows, amount.tokens) == (len(own), tokens)
            blocks = tokens / reading.longest
            assert amount.epochs == pytest.approx(blocks / reading.sources[s].blocks[b])


def test_rows_that_are_parts_of_blocks_are_shuffled_over_all_the_blocks_of_the_stage():
    reading = Reading([ALONE], [ReadStage(10, 8, 1, (1,)), ReadStage(2, 2, 4, (1,))], seed=0)
    rows = rows_of(reading, 10)
    neighbours = sum(a[4] == b[4] for a, b in pairwise(rows))
    assert neighbours < 15  # of 79; in order of blocks it would be 60
    blocks = {row[4] for row in rows}
    assert len(blocks) == 20  # all of the first epoch: the next stage begins the second
    assert {row[3] for row in rows_of(reading, 12)[80:]} == {1}


@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.2], [0.97, 0.029, 0.001], [1.0, 2.0]])
def test_a_run_gives_every_source_its_share_at_every_prefix(weights):
    """Within one sample, which is less than one in 1,000 samples, in order of ranks and rows."""
    sources = [ReadSource(f"s{n}", (50,), (1,)) for n in range(len(weights))]
    stage = ReadStage(None, 120, 4, tuple(whole_shares(weights)))
    rows = rows_of(Reading(sources, [stage], seed=0), 30, world=3)
    source = np.array([row[1] for row in rows])
    prefix = np.arange(1, len(rows) + 1)
    for s, weight in enumerate(weights):
        error = np.abs(np.cumsum(source == s) - prefix * weight / sum(weights))
        assert error.max() < 1


def test_sources_of_one_size_are_not_read_in_step():
    pair = [ReadSource("a", (500,), (1,)), ReadSource("b", (500,), (1,))]
    rows = rows_of(Reading(pair, [ReadStage(None, 100, 4, (1, 1))], seed=0), 10)
    first, second = ([row[4] for row in rows if row[1] == s] for s in (0, 1))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10


def test_steps_after_the_end_are_answered_by_the_last():
    reading = Reading([ALONE], [ReadStage(3, 4, 2, (1,)), ReadStage(2, 4, 4, (1,))], seed=0)
    last, beyond = reading.places(4, 0, 1), reading.places(9, 0, 1)
    assert beyond.block.tolist() == last.block.tolist()
    assert beyond.stage == last.stage == 1


def test_sample_numbers_far_beyond_32_bits():
    size = 3_000_000_000
    reading = Reading([ReadSource("", (size,), (1,))], [ReadStage(None, 8, 4, (1,))], seed=0)
    at = reading.places(2**40, 0, 1)
    assert at.epoch.tolist() == [8 * 2**40 // size] * 8
    assert len(set(at.block.tolist())) == 8
