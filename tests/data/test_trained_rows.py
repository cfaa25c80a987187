"""train.py trains on the rows that `python -m data.inspect` prints: epoch by epoch, for any ranks
and loader processes, and after a crash. Rows are known by the losses of a model that stands still.
"""

import gzip
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import eval as eval_command
import train as train_command
from data.index import read_index
from data.tokenizer import Tokenizer
from model.training.checkpoints import latest
from model.training.load import load_model
from model.training.metrics_file import is_validation, read
from tests.commands import SMALL, called, inspected, losses
from tests.data.prepared_sets import prepared, texts_of, windows_of, write_records
from tests.data.test_prepare import documents_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROOT = Path(__file__).parents[2]
STILL = ["optimizer.lr=1e-12", "optimizer.adamw_lr=1e-12"]
QUIET = [*SMALL, "data=prepared", "data.files=null", "trainer.sample_tokens=0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Files of 5, 9 and 2 documents, numbered through from 0 to 15."""
    text = tmp_path_factory.mktemp("uneven")
    write_records(text, [5, 9, 2])
    return prepared(text / "prepared", f"{text}/*.jsonl", "tokenizer.vocab_size=288")


def trained(root: Path, name: str, folder: Path, *overrides: str) -> Path:
    given = [*QUIET, f"data.dir={folder}", f"run.root={root}", f"run.name={name}", *overrides]
    code, _, err = called(train_command.main, *given)
    assert code == 0, err
    return root / name


def killed(root: Path, name: str, folder: Path, step: int, *overrides: str) -> None:
    """A run whose process was killed when it had done `step` steps."""
    given = [*QUIET, f"data.dir={folder}", f"run.root={root}", f"run.name={name}", *overrides]
    done = subprocess.run(
        [sys.executable, "tests/data/killed_train.py", str(step), *given],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert max(losses(root / name)) == step


def steps_of(run: Path, count: int, world: int = 1) -> list[list[dict]]:
    """What all ranks together read in each step."""
    given = [f"root={run.parent}", f"run={run.name}", f"world={world}"]
    return [
        [row for rank in range(world) for row in inspected(*given, f"step={n}", f"rank={rank}")]
        for n in range(1, count + 1)
    ]


def losses_on(run: Path, steps: list[list[dict]]) -> list[float]:
    """The loss of the run's model on the rows of each step."""
    model, _ = load_model(latest(run / "checkpoints"), torch.device("cpu"))
    found = []
    for rows in steps:
        tokens, labels, segments = (
            torch.tensor([row[name] for row in rows]) for name in ("tokens", "labels", "segments")
        )
        with torch.no_grad():
            logits = model.head(model.hidden(tokens, segments))
        found.append(cross_entropy(logits.flatten(0, 1), labels.flatten()).item())
    return found


def check_trained_on(run: Path, steps: list[list[dict]]) -> None:
    measured = [loss for (loss,) in losses(run).values()]
    assert measured == pytest.approx(losses_on(run, steps), rel=2e-6)
    shifted = losses_on(run, [*steps[1:], steps[0]])
    assert measured != pytest.approx(shifted, rel=2e-4)  # other rows would have been noticed


def numbers(texts: list[str]) -> list[int]:
    return [int(number) for text in texts for number in re.findall(r"<(\d+)>", text)]


def test_an_epoch_of_uneven_files_is_trained_on_once_for_any_ranks_and_processes(folder, tmp_path):
    windows = windows_of(folder, 32)
    steps = -(-windows // 18)
    options = [*STILL, "trainer.batch_tokens=576", f"trainer.tokens={576 * steps}"]
    runs = {
        workers: trained(tmp_path, f"w{workers}", folder, *options, f"data.workers={workers}")
        for workers in (0, 1, 4)
    }
    read_by = {world: steps_of(runs[0], steps, world) for world in (1, 2, 3)}
    for world, found in read_by.items():
        assert all(len(rows) == 18 for rows in found)
        drop = ("rank", "world", "row")  # of the place among the ranks
        rows = [{k: row[k] for k in row if k not in drop} for row in itertools.chain(*found)]
        if world == 1:
            all_rows = rows
        assert rows == all_rows
    assert [row["sample"] for row in all_rows] == list(range(18 * steps))
    first = [row for row in all_rows if row["epoch"] == 1]
    index = read_index(folder)
    held_out = index.validation.documents
    shown = numbers(texts_of(first, folder))
    assert shown == sorted(set(shown))
    assert len(shown) == index.train.documents == 16 - held_out
    assert [row["epoch"] for row in all_rows[len(first) :]] == [2] * (18 * steps - windows)
    for run in runs.values():
        check_trained_on(run, read_by[1])
        assert losses(run, "grad_norm") == losses(runs[0], "grad_norm")


def test_eval_scores_what_each_held_out_document_costs_alone(tmp_path):
    """Documents are read one by one here; rows of 32 tokens cut them, and context ends there."""
    write_records(tmp_path, [7, 4, 20])
    files, wanted = f"{tmp_path}/*.jsonl", "data.validation_bytes=600"
    folder = prepared(tmp_path / "prepared", files, "tokenizer.vocab_size=288", wanted)
    run = trained(tmp_path, "one", folder, "trainer.tokens=640")
    code, out, err = called(eval_command.main, f"root={tmp_path}", "run=one")
    assert code == 0, err

    model, _ = load_model(latest(run / "checkpoints"), torch.device("cpu"))
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    texts = documents_of(folder, "validation")
    assert len(texts) > 2
    nats, place, targets = 0.0, 0, 0
    for text in texts:
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        at = 0
        while at < len(ids) - 1:
            end = min(len(ids), at + 32 - (place + at) % 32)
            piece, labels = torch.tensor([ids[at:end]]), torch.tensor(ids[at + 1 : end + 1])
            with torch.no_grad():
                logits = model.head(model.hidden(piece, torch.zeros_like(piece)))[0]
            nats += cross_entropy(logits[: len(labels)], labels, reduction="sum").item()
            targets += len(labels)
            at = end
        place += len(ids)
    size = sum(len(text.encode()) for text in texts)
    packed = sum(len(gzip.compress(text.encode(), compresslevel=9)) for text in texts)
    assert targets == place - len(texts)
    assert f"{nats / targets:.4f} nats per token" in out
    cells = [f"{value:.4f}" for value in (nats / size / math.log(2), 8 * packed / size)]
    assert all(cell in out for cell in cells)
    assert f"{size:,} bytes in {len(texts)} documents" in out


@pytest.mark.long
def test_epochs_after_a_crash_are_whole(folder, tmp_path):
    """20 documents of one row each, 2 rows a step: killed after step 9 of 30."""
    lines = [json.dumps({"text": f"{n:02d}" * 15}) + "\n" for n in range(10, 31)]
    (tmp_path / "a.jsonl").write_text("".join(lines[:16]))
    (tmp_path / "b.jsonl").write_text("".join(lines[16:]))
    tokenizer = f"tokenizer.path={folder}/tokenizer.model"
    given = [tokenizer, "data.validation_bytes=30"]
    rows = prepared(tmp_path / "prepared", f"{tmp_path}/*.jsonl", *given)
    assert read_index(rows).train.documents == windows_of(rows, 32) == 20

    options = [*STILL, "trainer.batch_tokens=64", "trainer.tokens=1920", "trainer.validate_every=8"]
    whole = trained(tmp_path, "whole", rows, *options)
    killed(tmp_path, "killed", rows, 9, *options)
    resumed = trained(tmp_path, "killed", rows, *options)
    columns = ("grad_norm", "epochs", "learning_rate")
    assert losses(resumed, *columns) == losses(whole, *columns)
    assert len(losses(resumed)) == 30

    # The order does not depend on the size of a step: all of them as one.
    given = [f"data.dir={rows}", "data=prepared", "data.seq_len=32", "trainer.batch_tokens=1920"]
    shown = inspected(*given)
    check_trained_on(resumed, [shown[2 * step : 2 * step + 2] for step in range(30)])
    for epoch in (1, 2, 3):
        found = shown[20 * epoch - 20 : 20 * epoch]
        assert {row["epoch"] for row in found} == {epoch}
        read_then = sorted(text for row in found for text in row["texts"])
        assert len(set(read_then)) == 20
        assert set(read_then) <= {json.loads(line)["text"] for line in lines}
    train_rows = [row for row in read(resumed / "metrics.jsonl") if not is_validation(row)]
    assert [row["epochs"] for row in train_rows[9::10]] == [1, 2, 3]


@pytest.mark.long
def test_rows_after_a_crash_are_those_of_the_run_that_had_none(tmp_path):
    """500 documents of 1 to 50 characters; killed after step 13, continued from step 11 to 25."""
    lines = [
        json.dumps({"text": "".join(chr(97 + (n * k * k) % 26) for k in range(1 + n * 37 % 50))})
        for n in range(500)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    varied = prepared(tmp_path / "prepared", f"{tmp_path}/*.jsonl", "tokenizer.vocab_size=300")
    options = ["data.seq_len=64", "trainer.batch_tokens=256", "trainer.tokens=6400"]
    options += ["trainer.checkpoint_every=11"]
    columns = ("grad_norm", "tokens", "epochs")
    expected = losses(trained(tmp_path, "whole", varied, *options), *columns)
    assert len(expected) == 25
    killed(tmp_path, "r0", varied, 13, *options, "data.workers=3")
    shutil.copytree(tmp_path / "r0", tmp_path / "r3")
    for workers in (0, 3):
        more = f"data.workers={workers}"
        assert (
            losses(trained(tmp_path, f"r{workers}", varied, *options, more), *columns) == expected
        )
