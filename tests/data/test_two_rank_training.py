"""Two processes train on files of 7 and 4 documents: as many steps each, and as train.py alone."""

import json
from pathlib import Path

import pytest

import train as train_command
from tests.commands import SMALL, called, losses
from tests.data.prepared_sets import prepared, windows_of, write_records
from tests.ranks import run_two_ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    text = tmp_path_factory.mktemp("two")
    write_records(text, [7, 4])
    return prepared(text / "prepared", f"{text}/*.jsonl", "tokenizer.vocab_size=288")


@pytest.mark.long
@pytest.mark.parametrize(("rows", "micro"), [(2, "null"), (4, "1")], ids=["one", "accumulated"])
def test_two_ranks_on_uneven_files_do_what_one_process_does(folder, tmp_path, rows, micro):
    windows = windows_of(folder, 32)
    steps = -(-(windows + 1) // rows)
    assert rows * steps > windows  # the last step begins the next epoch
    overrides = [
        *SMALL,
        "data=prepared",
        "data.files=null",
        f"data.dir={folder}",
        f"run.root={tmp_path}",
        f"trainer.batch_tokens={32 * rows}",
        f"trainer.tokens={32 * rows * steps}",
        f"trainer.micro_batch_rows={micro}",
        "trainer.validate_every=3",
        "trainer.validation_batches=1000",
        "trainer.sample_tokens=0",
    ]
    code, out, err = called(train_command.main, *overrides, "run.name=alone")
    assert code == 0, err
    share = rows * steps / windows
    assert f"note: the training text is read {share:.1f} times, in another order each time" in err
    assert f"{share:.2f}" in out

    script = Path(__file__).parent / "two_ranks_train.py"
    lines = run_two_ranks(script, *overrides, "run.name=both", "strategy=ddp")
    first, second = (
        json.loads(next(line for line in printed if line.startswith("{"))) for printed in lines
    )
    assert first["steps"] == second["steps"] == steps
    # Each sample of the run once: so every window once, before the next epoch begins.
    assert sorted(first["trained"] + second["trained"]) == list(range(rows * steps))
    assert len(first["trained"]) == len(second["trained"])
    assert len(first["validated"]) == len(second["validated"]) > 0
    assert first["losses"] == second["losses"]
    alone = [loss for (loss,) in losses(tmp_path / "alone").values()]
    assert first["losses"] == pytest.approx(alone, rel=1e-4)
