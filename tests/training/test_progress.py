import io

import pytest
from standin import Standin, StandinData, make_trainer

from model.training.checkpoints import Checkpoints
from model.training.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


def fit(folder, stream, percent=25, resume=None, max_steps=20, **options):
    callbacks = [Progress((), percent, stream), Checkpoints(folder, 7, 9, 0, {})]
    trainer = make_trainer(callbacks, max_steps, **options)
    trainer.fit(Standin(), datamodule=StandinData(), ckpt_path=resume)
    return stream.getvalue()


def test_plain_lines_every_few_percent_without_a_terminal(tmp_path):
    lines = fit(tmp_path, io.StringIO(), val_check_interval=10).splitlines()
    assert lines[0] == "train: from step 0 to 20"
    steps = [line.split("step ")[1].split("/")[0] for line in lines if "loss" in line]
    assert steps == ["5", "10", "15", "20"]
    assert all("1,000 tokens/s" in line and "left" in line for line in lines if "loss" in line)
    assert [line.split(",")[0] for line in lines if "bits/byte" in line] == [
        "validate: step 10",
        "validate: step 20",
    ]
    assert "\r" not in "".join(lines)


def test_a_bar_in_a_terminal_starts_at_the_resumed_step(tmp_path):
    text = fit(tmp_path, Terminal(), val_check_interval=10)
    assert "20/20" in text
    assert "loss" in text
    assert "validate" in text
    resumed = fit(tmp_path, Terminal(), resume=tmp_path / "step-00000014.ckpt")
    assert "14/20" in resumed.split("\r")[1]


def test_lines_of_a_resumed_run_start_at_its_step(tmp_path):
    fit(tmp_path, io.StringIO())
    lines = fit(tmp_path, io.StringIO(), resume=tmp_path / "step-00000014.ckpt").splitlines()
    assert lines[0] == "train: from step 14 to 20"
    assert [line.split(" (")[0] for line in lines[1:]] == [
        "train: step 15/20",
        "train: step 20/20",
    ]


def test_short_runs_get_a_line_per_step_at_most(tmp_path):
    lines = fit(tmp_path, io.StringIO(), percent=1, max_steps=3).splitlines()
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.7, "1m00s"), (185, "3m05s"), (7620, "2h07m")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text
