"""Rows of several sources, stages and buckets through the loaders: equal for any ranks, processes
and restart; and mistakes."""

import itertools

import numpy as np
import pytest
import torch

from data.config import LengthConfig
from data.index import read_index
from data.module import PackedDataModule
from data.packed import PackedSplit
from data.rows import RowStage, TrainRows
from data.sets import Prepared

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WEB = [[10 + d] * (3 + 5 * (d % 7)) for d in range(40)]
CODE = [[60 + d] * 30 for d in range(12)]
STAGES = [
    RowStage(4, 6, 4),
    RowStage(3, 12, 8, {"code": 1.0}),
    RowStage(5, 6, 8, {"web": 1.0, "code": 3.0}),
]
WEIGHTS = {"web": 2.0, "code": 1.0}
BY_LENGTH = LengthConfig(bounds=[20], weights=[1.0, 3.0])


@pytest.fixture
def sets(stream):
    return {
        name: Prepared(folder, read_index(folder))
        for name, folder in (("web", stream(WEB, "web")), ("code", stream(CODE, "code")))
    }


def batches(sets, data_config, *, start, rank=0, world=1, workers=0, count=12):
    module = PackedDataModule(
        sets,
        data_config(seq_len=4, workers=workers, by_length=BY_LENGTH),
        WEIGHTS,
        STAGES,
        val_rows=2,
        start_step=lambda: start,
        rank=rank,
        world=world,
    )
    return list(itertools.islice(iter(module.train_dataloader()), count - start))


QUICK = {(1, 1, 0), (1, 4, 5), (2, 0, 3), (2, 1, 6), (2, 4, 4), (3, 0, 0), (3, 1, 8), (3, 0, 11)}
"""Before, at and after the borders of stages, which are after steps 4 and 7."""

KILLED = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.long)
    for case in itertools.product((1, 2, 3), (0, 1, 4), range(12))
]


@pytest.fixture
def whole(sets, data_config):
    return batches(sets, data_config, start=0)


@pytest.mark.parametrize(("world", "workers", "start"), KILLED)
def test_a_run_killed_at_any_step_continues_on_any_ranks_and_processes(
    sets, data_config, whole, world, workers, start
):
    place = {"world": world, "workers": workers, "start": start}
    parts = [batches(sets, data_config, rank=rank, **place) for rank in range(world)]
    for step in range(start, 12):
        for name, expected in whole[step].items():
            joined = torch.cat([part[step - start][name] for part in parts])
            assert torch.equal(joined, expected)
    assert [tuple(b["tokens"].shape) for b in whole] == [(6, 4)] * 4 + [(12, 8)] * 3 + [(6, 8)] * 5


def test_rows_are_those_of_their_source_window_and_bucket(sets):
    rows = TrainRows(sets, WEIGHTS, BY_LENGTH, STAGES, seed=0)
    seen = []
    for step in range(12):
        item = rows.item(step, 0, 1)
        for number, row in enumerate(rows.rows(step, 0, 1)):
            length = len(row.tensors["tokens"])
            split = PackedSplit(sets[row.source].folder, "train", length)
            for name, value in split[row.window].items():
                assert torch.equal(item[name][number], value)
                assert torch.equal(row.tensors[name], value)
            if row.source == "code":
                assert row.bucket == "20 and more"
            seen.append((row.source, length))
    assert set(seen) == {("web", 4), ("code", 4), ("code", 8), ("web", 8)}
    assert seen[24:60] == [("code", 8)] * 36
    assert [seen[:24].count((name, 4)) for name in ("web", "code")] == [16, 8]


def test_long_documents_are_read_as_much_more_often_as_their_weight_says(sets):
    one = {"": sets["web"]}
    rows = TrainRows(one, {"": 1.0}, BY_LENGTH, [RowStage(None, 10, 4)], seed=0)
    short, long = rows.reading.amounts(1000)[0]
    assert long.epochs / short.epochs == pytest.approx(3, rel=1e-3)
    plain = TrainRows(one, {"": 1.0}, None, [RowStage(None, 10, 4)], seed=0)
    even = LengthConfig(bounds=[20], weights=[1.0, 1.0])
    flat = TrainRows(one, {"": 1.0}, even, [RowStage(None, 10, 4)], seed=0)
    windows = len(plain.splits["", 4])
    assert sum(flat.reading.sources[0].blocks) == windows
    # With equal weights an epoch still holds every window once.
    first = [row.window for step in range(windows // 10) for row in flat.rows(step, 0, 1)]
    assert len(set(first)) == len(first)


def test_columns_of_metrics_count_epochs(sets):
    rows = TrainRows(sets, WEIGHTS, None, [RowStage(None, 6, 4)], seed=0)
    windows = {name: len(rows.splits[name, 4]) for name in sets}
    expected = {"epochs_web": 40 / windows["web"], "epochs_code": 20 / windows["code"]}
    assert rows.epochs(10) == pytest.approx(expected)
    alone = TrainRows({"": sets["web"]}, {"": 1.0}, None, [RowStage(None, 6, 4)], seed=0)
    assert alone.epochs(10) == pytest.approx({"epochs": 60 / windows["web"]})


def test_text_too_short_for_the_longest_row_is_refused(sets):
    stages = [RowStage(1, 2, 4), RowStage(1, 2, 4096)]
    with pytest.raises(ValueError, match=r"web has .* training tokens, too few for one row of 4,0"):
        TrainRows(sets, WEIGHTS, None, stages, seed=0)


def test_weights_too_small_to_be_kept_are_refused(sets):
    stage = [RowStage(None, 2, 4)]
    with pytest.raises(ValueError, match=r"less than once in 65,536 rows.*web 1, code 1e-07"):
        TrainRows(sets, {"web": 1.0, "code": 1e-7}, None, stage, seed=0)
    none = LengthConfig(bounds=[20], weights=[1.0, 0.0])
    with pytest.raises(ValueError, match=r"nothing of source code would be read.*20 and more 90"):
        TrainRows(sets, WEIGHTS, none, stage, seed=0)
    rare = LengthConfig(bounds=[20], weights=[1e-9, 1.0])
    with pytest.raises(ValueError, match=r"a bucket of source web would be read less than once"):
        TrainRows(sets, WEIGHTS, rare, stage, seed=0)


def test_a_document_without_tokens_changes_nothing(stream):
    documents = [list(range(10, 15)), list(range(20, 47))]
    folder = stream(documents)
    expected = PackedSplit(folder, "train", 32)[0]
    index = read_index(folder)
    train = index.train.model_copy(update={"documents": 3})
    np.save(folder / index.train.offsets_file, np.array([0, 5, 5], dtype=np.int64))
    split = PackedSplit(folder, "train", 32, index.model_copy(update={"train": train}))
    assert all(torch.equal(split[0][name], value) for name, value in expected.items())
    assert split.targets(0) == int((expected["labels"] >= 0).sum()) == 30


@pytest.mark.parametrize("starts", [[0, 20, 9], [1, 20, 30], [0, 20, 40]])
def test_starts_of_documents_that_do_not_rise_are_refused_with_the_file(stream, starts):
    folder = stream([[5] * 10, [6] * 10, [7] * 12])
    np.save(folder / "train-documents.npy", np.array(starts, dtype=np.int64))
    with pytest.raises(ValueError, match=r"train-documents\.npy: the starts of documents .* rise"):
        PackedSplit(folder, "train", 32)[0]


@pytest.mark.parametrize("starts", [np.array([0.0, 5.0, 9.0]), np.array([], dtype=np.int64)])
def test_starts_of_another_type_or_number_are_refused_with_the_file(stream, starts):
    folder = stream([[5] * 10, [6] * 10, [7] * 12])
    np.save(folder / "train-documents.npy", starts)
    with pytest.raises(ValueError, match=r"train-documents\.npy: it holds"):
        PackedSplit(folder, "train", 32)
