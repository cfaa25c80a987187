import os
import signal
import subprocess
import sys

import pytest
from standin import Standin, StandinData, make_trainer

from model.training.catch_up import CatchUpValidation, validate_last_step
from model.training.checkpoints import Checkpoints, latest
from model.training.metrics import Metrics
from model.training.metrics_file import is_validation, read
from model.training.stop import SIGNALS, Stop, StopRequested
from model.training.stop_at_step import StopAtStep
from model.training.tracking import Tracker


class Signalled(Standin):
    """Gets a signal in the middle of the 13th step, or in its validation."""

    def __init__(self, number, in_validation=False):
        super().__init__()
        self.number = number
        self.in_validation = in_validation
        self.validated_batches = 0

    def training_step(self, batch, batch_idx):
        if self.global_step == 12 and not self.in_validation:
            os.kill(os.getpid(), self.number)
        super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.validated_batches += 1
        if self.global_step == 12 and self.in_validation:
            os.kill(os.getpid(), self.number)
        super().validation_step(batch, batch_idx)


def fit(folder, stop, module, resume=False, **options):
    checkpoints = Checkpoints(folder / "checkpoints", 100, 2, 0, {})
    metrics = Metrics(folder / "metrics.jsonl", 1, Tracker())
    callbacks = [
        metrics,
        checkpoints,
        CatchUpValidation(metrics.path),
        StopAtStep(stop, checkpoints),
    ]
    trainer, data = make_trainer(callbacks, 20, **options), StandinData()
    start = latest(folder / "checkpoints") if resume else None
    trainer.fit(module, datamodule=data, ckpt_path=start)
    validate_last_step(trainer, module, data, metrics.path)
    return module


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)]
)
def test_a_signal_saves_the_step_and_the_same_command_continues(tmp_path, number, exit_code):
    with (
        Stop() as stop,
        pytest.raises(StopRequested, match="the same command continues") as stopped,
    ):
        fit(tmp_path, stop, Signalled(number))
    assert stopped.value.step == 13
    assert str(tmp_path / "checkpoints" / "step-00000013.ckpt") in str(stopped.value)
    assert signal.Signals(number).name in str(stopped.value)
    assert stop.signal_number == number
    assert stop.exit_code == exit_code
    with Stop() as stop:
        resumed = fit(tmp_path, stop, Standin(), resume=True)
    assert stop.exit_code == 0
    whole = fit(tmp_path / "whole", Stop(), Standin())
    assert resumed.seen == whole.seen[13:]
    assert [row.get("loss") for row in read(tmp_path / "metrics.jsonl")] == [
        row.get("loss") for row in read(tmp_path / "whole" / "metrics.jsonl")
    ]


def test_a_signal_in_a_validation_ends_it_and_it_is_done_again(tmp_path):
    module = Signalled(signal.SIGTERM, in_validation=True)
    with Stop() as stop, pytest.raises(StopRequested):
        fit(tmp_path, stop, module, val_check_interval=12)
    assert module.validated_batches == 1
    assert not any(is_validation(row) for row in read(tmp_path / "metrics.jsonl"))
    with Stop() as stop:
        fit(tmp_path, stop, Standin(), resume=True, val_check_interval=12)
    steps = [row["step"] for row in read(tmp_path / "metrics.jsonl") if is_validation(row)]
    assert steps == [12, 20]


def test_a_signal_in_the_validation_after_the_last_step_ends_it_and_it_is_done_again(tmp_path):
    class SignalledAtTheEnd(Standin):
        def validation_step(self, batch, batch_idx):
            os.kill(os.getpid(), signal.SIGTERM)
            super().validation_step(batch, batch_idx)

    with Stop() as stop, pytest.raises(StopRequested, match="after step 20") as stopped:
        fit(tmp_path, stop, SignalledAtTheEnd())
    assert stopped.value.step == 20
    assert not any(is_validation(row) for row in read(tmp_path / "metrics.jsonl"))
    with Stop() as stop:
        fit(tmp_path, stop, Standin(), resume=True)
    steps = [row["step"] for row in read(tmp_path / "metrics.jsonl") if is_validation(row)]
    assert steps == [20]


def test_the_first_of_several_signals_counts():
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.signal_number == signal.SIGUSR1


def test_previous_handlers_come_back(tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    with Stop() as stop, pytest.raises(StopRequested):
        fit(tmp_path, stop, Signalled(signal.SIGTERM))
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert stop.signal_number == signal.SIGTERM


def test_handlers_can_be_put_back_before_the_end():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Stop() as stop:
        assert [signal.getsignal(number) for number in SIGNALS] != before
        stop.restore()
        assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_second_interrupt_quits_at_once():
    script = (
        "import os, signal\n"
        "from model.training.stop import Stop\n"
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
        "with Stop():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('not here', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stdout == "still here\n"
    assert "Ctrl-C again quits at once" in done.stderr
