import math

import pytest
import torch
from standin import TOKENS_PER_STEP, Standin, StandinData, make_trainer

from model.training.catch_up import CatchUpValidation, validate_last_step
from model.training.checkpoints import Checkpoints, latest, read_best
from model.training.metrics import Metrics
from model.training.metrics_file import append, cut, is_validation, read
from model.training.tracking import Tracker


class Recorder(Tracker):
    def __init__(self):
        self.started = []
        self.rows = []

    def start(self, rows):
        self.started.append(list(rows))

    def log(self, row):
        self.rows.append(row)


def fit(folder, max_steps=20, log_every=1, module=None, resume=False, every_steps=10, **options):
    recorder = Recorder()
    metrics = Metrics(folder / "metrics.jsonl", log_every, recorder)
    checkpoints = Checkpoints(folder / "checkpoints", every_steps, 2, 0, {})
    catch_up = CatchUpValidation(metrics.path)
    trainer = make_trainer([metrics, checkpoints, catch_up], max_steps, **options)
    trainer.fit(
        module or Standin(),
        datamodule=StandinData(),
        ckpt_path=latest(folder / "checkpoints") if resume else None,
    )
    return recorder, metrics


def finish(folder, max_steps=20, module=None, resume=False, every_steps=10, **options):
    """`fit`, and the validation after the last step."""
    recorder = Recorder()
    metrics = Metrics(folder / "metrics.jsonl", 1, recorder)
    checkpoints = Checkpoints(folder / "checkpoints", every_steps, 2, 0, {})
    trainer = make_trainer(
        [metrics, checkpoints, CatchUpValidation(metrics.path)], max_steps, **options
    )
    module, data = module or Standin(), StandinData()
    start = latest(folder / "checkpoints") if resume else None
    trainer.fit(module, datamodule=data, ckpt_path=start)
    validate_last_step(trainer, module, data, metrics.path)
    return recorder, metrics


def train_steps(path):
    return [row["step"] for row in read(path) if not is_validation(row)]


def validation_steps(path):
    return [row["step"] for row in read(path) if is_validation(row)]


def test_rows_of_steps_and_validations_share_steps_and_tokens(tmp_path):
    recorder, metrics = fit(tmp_path, val_check_interval=7)
    rows = read(metrics.path)
    assert train_steps(metrics.path) == list(range(1, 21))
    assert validation_steps(metrics.path) == [7, 14]
    assert all(row["tokens"] == row["step"] * TOKENS_PER_STEP for row in rows)
    train = rows[0]
    assert {"loss", "learning_rate", "grad_norm", "tokens_per_second", "train_seconds"} < set(train)
    validation = next(row for row in rows if is_validation(row))
    assert set(validation) == {"step", "tokens", "val_nats_per_token", "val_bits_per_byte"}
    assert validation["val_bits_per_byte"] == pytest.approx(
        validation["val_nats_per_token"] / 0.7, rel=1e-6
    )
    assert recorder.started == [[]]
    assert recorder.rows == rows
    seconds = [row["train_seconds"] for row in rows if not is_validation(row)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("log_every", "expected"), [(6, [6, 12, 18, 20]), (100, [20]), (5, None)])
def test_every_nth_step_and_always_the_last(tmp_path, log_every, expected):
    _, metrics = fit(tmp_path, log_every=log_every)
    assert train_steps(metrics.path) == (expected or [5, 10, 15, 20])


class Crash(Exception):
    pass


class Crashing(Standin):
    def training_step(self, batch, batch_idx):
        if self.global_step == 17:
            raise Crash
        super().training_step(batch, batch_idx)


def test_each_step_appears_once_after_a_crash(tmp_path, capsys):
    with pytest.raises(Crash):
        fit(tmp_path, module=Crashing(), log_every=3, val_check_interval=4)
    path = tmp_path / "metrics.jsonl"
    assert train_steps(path) == [3, 6, 9, 12, 15, 17]  # the last step before the crash, too
    before = read(path)
    with open(path, "a") as file:
        file.write('{"step": 18, "lo')
    capsys.readouterr()
    recorder, metrics = fit(tmp_path, resume=True, log_every=3, val_check_interval=4)
    passed_over = f"warning: {path}: passed over the half-written last line\n"
    assert capsys.readouterr().err == passed_over
    # The best checkpoint so far was saved at the validation of step 16.
    kept = [row for row in before if row["step"] <= 16]
    assert recorder.started == [kept]
    assert train_steps(path) == [3, 6, 9, 12, 15, 18, 20]
    assert validation_steps(path) == [4, 8, 12, 16, 20]
    assert read(path) == kept + recorder.rows
    seconds = [row["train_seconds"] for row in read(path) if not is_validation(row)]
    assert seconds == sorted(seconds)
    assert round(metrics.train_seconds, 3) >= seconds[-1]  # of both starts together


def test_a_validation_that_was_prevented_is_made_up_for(tmp_path):
    class CrashInValidation(Standin):
        def validation_step(self, batch, batch_idx):
            if self.global_step == 10:
                raise Crash
            super().validation_step(batch, batch_idx)

    whole = tmp_path / "whole"
    fit(whole, val_check_interval=5)
    with pytest.raises(Crash):
        fit(tmp_path, module=CrashInValidation(), val_check_interval=5)
    path = tmp_path / "metrics.jsonl"
    assert validation_steps(path) == [5]
    fit(tmp_path, resume=True, val_check_interval=5)
    assert [(row["step"], row.get("loss"), row.get("val_bits_per_byte")) for row in read(path)] == [
        (row["step"], row.get("loss"), row.get("val_bits_per_byte"))
        for row in read(whole / "metrics.jsonl")
    ]
    assert all(row["tokens"] == row["step"] * TOKENS_PER_STEP for row in read(path))


def test_a_validation_that_was_done_is_not_repeated(tmp_path):
    fit(tmp_path, max_steps=10, val_check_interval=5)
    recorder, metrics = fit(tmp_path, resume=True, val_check_interval=5)
    assert validation_steps(metrics.path) == [5, 10, 15, 20]
    assert [row["step"] for row in recorder.rows if is_validation(row)] == [15, 20]


def test_a_finished_run_changes_nothing(tmp_path):
    fit(tmp_path, val_check_interval=5)
    before = (tmp_path / "metrics.jsonl").read_text()
    recorder, metrics = fit(tmp_path, resume=True, val_check_interval=5)
    assert metrics.tokens == 20 * TOKENS_PER_STEP
    assert metrics.train_seconds > 0
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert recorder.rows == []


@pytest.mark.parametrize(("every", "steps"), [(100, [20]), (8, [8, 16, 20]), (5, [5, 10, 15, 20])])
def test_the_last_step_is_validated_once_and_a_finished_run_has_a_best_checkpoint(
    tmp_path, every, steps
):
    recorder, metrics = finish(tmp_path, val_check_interval=every)
    assert validation_steps(metrics.path) == steps
    rows = read(metrics.path)
    assert recorder.rows == rows
    assert rows[-1]["tokens"] == 20 * TOKENS_PER_STEP
    assert read_best(tmp_path / "checkpoints")["step"] == 20
    before = metrics.path.read_bytes()
    recorder, metrics = finish(tmp_path, val_check_interval=every, resume=True)
    assert metrics.path.read_bytes() == before
    assert recorder.rows == []


@pytest.mark.parametrize("every", [100, 10])
def test_the_last_validation_is_made_up_for_when_no_step_is_left(tmp_path, every):
    class CrashInValidation(Standin):
        def validation_step(self, batch, batch_idx):
            if self.global_step == 20:
                raise Crash
            super().validation_step(batch, batch_idx)

    finish(tmp_path / "whole", val_check_interval=every)
    with pytest.raises(Crash):
        finish(tmp_path, module=CrashInValidation(), val_check_interval=every)
    path = tmp_path / "metrics.jsonl"
    before = read(path)
    with open(path, "a") as file:
        file.write('{"step": 20, "va')  # killed while it wrote the row
    recorder, _ = finish(tmp_path, resume=True, val_check_interval=every)
    assert recorder.started == [before]
    assert read(path) == before + recorder.rows
    assert [row["step"] for row in recorder.rows] == [20]
    for key in ("step", "tokens", "loss", "val_bits_per_byte", "val_nats_per_token"):
        whole = read(tmp_path / "whole" / "metrics.jsonl")
        assert [row.get(key) for row in read(path)] == [row.get(key) for row in whole]
    assert read_best(tmp_path / "checkpoints") == read_best(tmp_path / "whole" / "checkpoints")
    assert recorder.rows[-1]["tokens"] == 20 * TOKENS_PER_STEP


def test_values_that_json_lacks_are_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path, 1, Recorder())
    metrics.write({"step": 1, "tokens": 2, "loss": torch.tensor(float("nan")), "norm": math.inf})
    assert path.read_text() == '{"step": 1, "tokens": 2, "loss": "nan", "norm": "inf"}\n'
    (row,) = read(path)
    assert math.isnan(row["loss"])
    assert row["norm"] == math.inf
    assert cut(path, 1)[0]["norm"] == math.inf
    assert read(path)[0]["norm"] == math.inf


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append(path, {"step": 1, "tokens": 1})
    with open(path, "a") as file:
        file.write("oops\n")
    append(path, {"step": 2, "tokens": 2})
    with pytest.raises(ValueError, match="line 2"):
        read(path)


def test_a_missing_file_has_no_rows(tmp_path):
    assert read(tmp_path / "metrics.jsonl") == []


def test_logging_never_is_refused(tmp_path):
    with pytest.raises(ValueError, match="log_every=0"):
        Metrics(tmp_path / "metrics.jsonl", 0, Tracker())
