"""The data module: the same global batches for any ranks, loader processes and restart point."""

import itertools
import random

import lightning
import pytest
import torch

from data.index import read_index
from data.module import PackedDataModule
from data.packed import IGNORED, PackedSplit
from data.rows import RowStage
from data.sets import Prepared
from model.training.module import micro_batches

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def module(stream, data_config):
    """A data module over a hand-made stream, by settings."""
    folders = {}

    def make(documents, *, seq_len=4, batch_rows=6, workers=0, val_rows=2, start=0, **place):
        key = str(documents)
        if key not in folders:
            folders[key] = stream(documents, name=f"stream{len(folders)}")
        return PackedDataModule(
            {"": Prepared(folders[key], read_index(folders[key]))},
            data_config(seq_len=seq_len, workers=workers),
            {"": 1.0},
            [RowStage(None, batch_rows, seq_len)],
            val_rows=val_rows,
            start_step=lambda: start,
            **({"rank": 0, "world": 1} | place),
        )

    return make


def take(loader, count):
    return list(itertools.islice(iter(loader), count))


DOCUMENTS = [[1, *range(10, 10 + 3 * i), 2] for i in range(1, 12)]


QUICK = {(1, 0), (1, 4), (2, 1), (3, 0), (3, 4)}
PLACES = [
    pytest.param(world, workers, marks=[] if (world, workers) in QUICK else pytest.mark.long)
    for world in (1, 2, 3)
    for workers in (0, 1, 4)
]


@pytest.mark.parametrize(("world", "workers"), PLACES)
def test_one_epoch_serves_every_row_once_whatever_ranks_workers_and_accumulation(
    module, world, workers
):
    """16 rows: the first 3 steps of 6 hold each once, then the next epoch begins."""
    documents = [[10 * i + j for j in range(4)] for i in range(1, 10)] * 2
    documents = documents[:16]
    reference = take(module(documents).train_dataloader(), 3)
    for start in (0, 1):
        seen = []
        for rank in range(world):
            place = {"rank": rank, "world": world, "workers": workers, "start": start}
            batches = take(module(documents, **place).train_dataloader(), 3 - start)
            assert all(len(batch["samples"]) == 6 // world for batch in batches)
            seen.append(batches)
        for step in range(3 - start):
            for name, expected in reference[step + start].items():
                joined = torch.cat([batches[step][name] for batches in seen])
                assert torch.equal(joined, expected)
                for rows in (1, 2, 4, None):  # of a micro-batch
                    parts = [p for b in seen for p in micro_batches(b[step], rows)]
                    assert all(len(part[name]) <= (rows or 6) for part in parts)
                    assert torch.equal(torch.cat([part[name] for part in parts]), expected)
    rows = torch.cat([batch["tokens"] for batch in reference])[:16]
    assert sorted(row[0].item() for row in rows) == sorted(ids[0] for ids in documents)
    assert torch.cat([batch["samples"] for batch in reference]).tolist() == list(range(18))


def test_epochs_after_a_restart_are_complete(module):
    """20 rows in batches of 2: restart after step 9 of 30."""
    documents = [[i, i, i, i] for i in range(10, 30)]
    whole = take(module(documents, batch_rows=2).train_dataloader(), 30)
    rest = take(module(documents, batch_rows=2, start=9).train_dataloader(), 21)
    first_tokens = [batch["tokens"][:, 0].tolist() for batch in whole[:9] + rest]
    assert first_tokens == [batch["tokens"][:, 0].tolist() for batch in whole]
    for epoch in range(3):
        ids = list(itertools.chain(*first_tokens[10 * epoch : 10 * epoch + 10]))
        assert sorted(ids) == list(range(10, 30))


@pytest.mark.parametrize("workers", [0, 3])
def test_rows_after_a_restart_equal_the_uninterrupted_run(module, workers):
    source = random.Random(0)
    documents = [
        [source.randrange(4, 100) for _ in range(source.randint(1, 50))] for _ in range(500)
    ]
    options = {"seq_len": 64, "batch_rows": 4, "workers": workers}
    whole = take(module(documents, **options).train_dataloader(), 25)
    rest = take(module(documents, **options, start=11).train_dataloader(), 14)
    for expected, batch in zip(whole[11:], rest, strict=True):
        assert all(torch.equal(batch[name], expected[name]) for name in expected)


def test_training_loader_has_no_length(module):
    with pytest.raises(TypeError, match="no len"):
        len(module(DOCUMENTS).train_dataloader())


def test_loaders_leave_the_global_random_state_alone(module):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    take(module(DOCUMENTS).train_dataloader(), 2)
    take(module(DOCUMENTS).val_dataloader()[0], 2)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_validation_covers_every_row_once_with_equal_batches_per_rank(module, world):
    served = []
    for rank in range(world):
        (loader,) = module(DOCUMENTS, rank=rank, world=world).val_dataloader()
        batches = list(loader)
        assert len(batches) == len(loader)
        assert all(batch["tokens"].shape == (2, 4) for batch in batches)
        served.append(batches)
    assert len({len(batches) for batches in served}) == 1
    split = PackedSplit(module(DOCUMENTS).validation[0].folder, "validation", 4)
    numbers = []
    for batch in itertools.chain(*served):
        for row, number in enumerate(batch["samples"].tolist()):
            if number < 0:
                assert (batch["labels"][row] == IGNORED).all()
            else:
                numbers.append(number)
                assert all(torch.equal(batch[k][row], v) for k, v in split[number].items())
    assert sorted(numbers) == list(range(len(split)))


def test_a_validation_batch_has_no_more_rows_than_the_split(module):
    ((batch,),) = module(DOCUMENTS, val_rows=2**63 - 1).val_dataloader()
    split = PackedSplit(module(DOCUMENTS).validation[0].folder, "validation", 4)
    assert batch["samples"].tolist() == list(range(len(split)))


def test_batch_that_ranks_cannot_share_is_refused_when_the_loader_is_built(module):
    with pytest.raises(ValueError, match="8 rows cannot be shared equally by 3 ranks"):
        module(DOCUMENTS, batch_rows=8, world=3).train_dataloader()
    with pytest.raises(ValueError, match="at least 1 row"):
        module(DOCUMENTS, val_rows=0).val_dataloader()


class Recorder(lightning.LightningModule):
    """Records the sample numbers it is trained and validated on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.trained, self.validated = [], []

    def training_step(self, batch, _):
        self.trained.append(batch["samples"].tolist())
        return self.weight.sum()

    def validation_step(self, batch, _):
        self.validated.append(batch["samples"].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_lightning_continues_from_its_restored_step(stream, data_config, tmp_path):
    folder = stream(DOCUMENTS)

    def fit(steps, checkpoint=None):
        model = Recorder()
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            val_check_interval=4,
            check_val_every_n_epoch=None,
            default_root_dir=tmp_path,
        )
        sets = {"": Prepared(folder, read_index(folder))}
        config = data_config(seq_len=4, workers=0)
        data = PackedDataModule(sets, config, {"": 1.0}, [RowStage(None, 3, 4)], val_rows=100)
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=False)
        trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
        return model

    first = fit(5)
    second = fit(9, tmp_path / "5.ckpt")
    assert first.trained == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(5)]
    assert second.trained == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(5, 9)]
    rows = len(PackedSplit(folder, "validation", 4))
    assert first.validated == [[*range(rows)]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [None, 10], ids=["gone", "cut"])
def test_what_goes_wrong_in_a_loader_process_is_told_in_its_own_words(module, workers, size):
    data = module(DOCUMENTS, workers=workers)
    shard = data.validation[0].folder / "train-00000.bin"
    if size is None:
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:size])
    with pytest.raises((ValueError, OSError)) as error:
        list(itertools.islice(iter(data.train_dataloader()), 3))
    assert str(shard) in str(error.value)
    assert ("No such file" if size is None else "it ends before token") in str(error.value)
    assert "Traceback" not in str(error.value)
    assert "\x1f" not in str(error.value)
