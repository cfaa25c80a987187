"""The commands end to end on small texts: a run, its files, and mistakes."""

import json
import shlex
import shutil
import subprocess
import sys

import pytest
import torch

import data.prepare as prepare_command
import eval as eval_command
import generate as generate_command
import train as train_command
from model.training.checkpoint_io import load
from model.training.checkpoints import best, latest
from model.training.metrics_file import is_validation, read
from tests.commands import losses
from tests.full_disk import files_end_at


def test_a_run_leaves_what_a_user_expects(command, tmp_path):
    code, out, err = command(train_command.main, "run.name=first", "trainer.plots=true")
    assert code == 0, err
    run = tmp_path / "first"
    for name in ("config.yaml", "revision.json", "data.json", "tokenizer.model", "sample.txt"):
        assert (run / name).is_file(), name
    for name in ("loss", "learning_rate", "throughput"):
        assert (run / "plots" / f"{name}.png").stat().st_size > 5000
    summary = json.loads((run / "summary.json").read_text())
    assert summary["tokens"] == 2560
    assert summary["steps"] == 20
    assert summary["val_nats_per_token"] > 0
    assert 0 < summary["gzip_bits_per_byte"] < 8
    assert summary["unigram_bits_per_byte"] > summary["gzip_bits_per_byte"]
    assert summary["tokens_per_second"] == pytest.approx(2560 / summary["train_seconds"], rel=1e-2)
    state = load(latest(run / "checkpoints"))["state_dict"]
    assert summary["parameters"] == sum(value.numel() for value in state.values())
    for part in (
        "gla",
        "retnet",
        "softmax",
        "val",
        f"generate.py run=first root={tmp_path}",
        "loss.png",
    ):
        assert part in out
    validated = [row["step"] for row in read(run / "metrics.jsonl") if is_validation(row)]
    assert validated == [7, 14, 20]

    code, out, _ = command(eval_command.main, "run=first")
    assert code == 0
    assert f"{summary['val_bits_per_byte']:.4f}" in out
    code, _, _ = command(train_command.main, "run.name=first")  # nothing is left to train
    assert code == 0
    assert json.loads((run / "summary.json").read_text())["val_bits_per_byte"] == pytest.approx(
        summary["val_bits_per_byte"]
    )

    code, out, _ = command(
        generate_command.main, "run=first", "prompt=item ", "max_new_tokens=8", "temperature=0"
    )
    assert code == 0
    assert out.startswith("item ")
    assert len(out) > len("item \n")


def test_a_prompt_that_is_not_utf8_is_refused_before_it_is_echoed(tmp_path):
    command = [sys.executable, "generate.py", f"root={tmp_path}", b"prompt=caf\xe9 au lait"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: prompt: byte 0xe9 at position 3 is not UTF-8")


def test_evaluation_says_how_to_prepare_data_that_is_gone(command, tmp_path, monkeypatch):
    root = f"data.root={tmp_path}/prepared"
    assert command(train_command.main, "run.name=first", "trainer.tokens=128", root)[0] == 0
    shutil.rmtree(tmp_path / "prepared")
    code, _, err = command(eval_command.main, "run=first")
    assert code == 1
    program, *overrides = shlex.split(err.splitlines()[-1].strip().removeprefix("python -m "))
    assert program == "data.prepare"
    monkeypatch.setattr(sys, "argv", [program, *overrides])
    prepare_command.main()
    assert command(eval_command.main, "run=first")[0] == 0


def test_a_run_that_is_not_there_is_named_with_the_command_that_trains_it(command, tmp_path):
    code, _, err = command(generate_command.main, "run=nowhere")
    assert code == 1
    assert err.endswith(f"Train one: python train.py run.name=nowhere run.root={tmp_path}\n")


def test_micro_batches_change_no_number(command, tmp_path):
    assert command(train_command.main, "run.name=micro", "trainer.tokens=640")[0] == 0
    whole = ["run.name=at-once", "trainer.tokens=640", "trainer.micro_batch_rows=null"]
    assert command(train_command.main, *whole)[0] == 0
    # Five steps: validated after the last one alone.
    assert best(tmp_path / "micro" / "checkpoints").name == "step-00000005.ckpt"
    left, right = losses(tmp_path / "micro"), losses(tmp_path / "at-once")
    assert [a for (a,) in left.values()] == pytest.approx([b for (b,) in right.values()], rel=1e-5)


def test_a_limit_in_minutes_shortens_the_run_and_is_kept(command, tmp_path):
    limit = ["run.name=short", "trainer.tokens=1e9", "trainer.minutes=0.01"]
    code, out, err = command(train_command.main, *limit)
    assert code == 0, err
    assert "fit into trainer.minutes=0.01" in out
    steps = len(losses(tmp_path / "short"))
    planned = json.loads((tmp_path / "short" / "budget.json").read_text())["tokens"]
    assert planned == steps * 128 < 1e6
    assert command(train_command.main, *limit)[0] == 0
    assert len(losses(tmp_path / "short")) == steps


def test_a_run_starts_from_another_runs_weights(command, tmp_path):
    assert command(train_command.main, "run.name=old", "trainer.tokens=640")[0] == 0
    branch = ["run.name=branch", "run.init_from=old", "trainer.tokens=128", "optimizer.lr=1e-12"]
    assert command(train_command.main, *branch, "optimizer.adamw_lr=1e-12")[0] == 0
    old, new = (
        load(latest(tmp_path / name / "checkpoints"))["state_dict"] for name in ("old", "branch")
    )
    for name, value in old.items():
        assert torch.allclose(value, new[name], atol=1e-8), name

    (tmp_path / "old").rename(tmp_path / "renamed")  # no longer needed, once there is a checkpoint
    code, _, err = command(train_command.main, *branch, "optimizer.adamw_lr=1e-12")
    assert code == 0, err
    for file in (tmp_path / "branch" / "checkpoints").iterdir():
        file.unlink()
    code, _, err = command(train_command.main, *branch, "optimizer.adamw_lr=1e-12")
    assert code == 1
    assert "there is no run 'old'" in err


def test_a_checkpoint_of_another_architecture_is_refused(command, trained, tmp_path):
    trained("wide")
    code, _, err = command(
        train_command.main, "run.name=narrow", "run.init_from=wide", "model.ffn_dim=32"
    )
    assert code == 1
    assert "another architecture" in err
    assert "model.ffn_dim: checkpoint 24, given 32" in err
    assert not (tmp_path / "narrow").exists()


@pytest.mark.parametrize(("key", "place"), [("run.root", "file"), ("data.root", "file/deeper")])
def test_a_folder_that_cannot_be_made_is_named_with_its_setting(command, tmp_path, key, place):
    (tmp_path / "file").write_text("")
    other = f"data.root={tmp_path}/prepared" if key == "run.root" else f"run.root={tmp_path}/runs"
    code, _, err = command(train_command.main, other, f"{key}={tmp_path}/file/deeper")
    assert code == 1
    assert err == (
        f"error: {key}={tmp_path}/file/deeper: {tmp_path}/{place}: Not a directory. "
        f"Give one that can be written: {key}=FOLDER\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_named_with_the_folder_of_the_runs(command, trained, tmp_path):
    """A real one: the process may write no file of more than 100 bytes."""
    trained("first")
    with files_end_at(100):
        code, _, err = command(train_command.main, "run.name=second", "trainer.tokens=128")
    assert code == 1
    assert err == (
        f"error: run.root={tmp_path}: {tmp_path}/second: File too large. "
        "Free space there, or give one that can be written: run.root=FOLDER\n"
    )


def test_a_prepared_folder_that_is_none_is_named_with_its_setting(command, tmp_path):
    code, _, err = command(train_command.main, "data.files=null", f"data.dir={tmp_path}")
    assert code == 1
    assert err.startswith(f"error: data.dir={tmp_path}: {tmp_path} is not a prepared data set")


def test_a_flipped_bit_in_the_data_is_named_before_training_starts(command, trained, tmp_path):
    """`trained` sees to it that there is a data set."""
    run = trained("kept")
    folder = shutil.copytree(json.loads((run / "data.json").read_text())["folder"], tmp_path / "d")
    contents = bytearray((folder / "train-00000.bin").read_bytes())
    contents[-3] ^= 1
    (folder / "train-00000.bin").write_bytes(contents)
    given = ["run.name=new", "data.files=null", f"data.dir={folder}", "data.verify=true"]
    code, _, err = command(train_command.main, *given)
    assert code == 1
    assert err.startswith(f"error: {folder}/train-00000.bin: its contents changed")
    assert not (tmp_path / "new").exists()


def test_a_sweep_trains_each_job_as_a_run_of_its_own(command, tmp_path):
    short = ["trainer.tokens=256", f"hydra.sweep.dir={tmp_path}/sweep"]
    jobs = ["run.name=lr-${optimizer.lr}", "optimizer.lr=0.001,0.02"]
    code, _, err = command(train_command.main, "-m", *short, *jobs)
    assert code == 0, err
    alone = ["run.name=alone", "optimizer.lr=0.02"]
    assert command(train_command.main, *short, *alone)[0] == 0
    swept = losses(tmp_path / "lr-0.02", "learning_rate", "grad_norm")
    assert swept == losses(tmp_path / "alone", "learning_rate", "grad_norm")
    assert swept != losses(tmp_path / "lr-0.001", "learning_rate", "grad_norm")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["seed=1,2"], "would both be the run"),
        (["seed=1,2", "run.name=s${seed}", "model.layers=gla,glaa"], "there is no mixer 'glaa'"),
        (["seed=1,2", "run.name=s${seed}", "run.root=README.md"], "Not a directory"),
    ],
)
def test_a_sweep_is_refused_before_its_first_job(command, tmp_path, overrides, named):
    elsewhere = f"data.root={tmp_path}/elsewhere"
    code, _, err = command(train_command.main, "-m", elsewhere, *overrides)
    assert code == 1
    assert err.startswith("error: job ")
    assert named in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["model.layers=glaa softmax"], "there is no mixer 'glaa' (did you mean 'gla'?)"),
        (["model.layers="], "names no layer"),
        (["trainer.batch_tokens=100"], "not a whole number of rows"),
        (["schedule.warmup=90%"], "longer than the run's"),
        (["run.name=../up"], "run.name='../up'"),
        (["run.init_from=nowhere"], "run.init_from=nowhere: there is no run 'nowhere'"),
        (["run.init_from=README.md", "data.files=nothing"], "README.md is no checkpoint"),
        (["tokenizer.vocab_size=5000"], "tokenizer.vocab_size="),
        (["data.files=nothing/*.txt"], "nothing/*.txt"),
        (["model.d_model=18"], "does not divide"),
    ],
)
def test_mistakes_end_before_anything_is_written(command, tmp_path, overrides, named):
    code, _, err = command(train_command.main, "run.name=bad", *overrides)
    assert code == 1
    assert named in err
    assert err.count("error:") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("content", "named"), [(b"", "empty"), (b"good\nb\xe4d\n" * 500, "byte")], ids=["empty", "utf8"]
)
def test_unreadable_text_leaves_nothing_behind(command, tmp_path, content, named):
    (tmp_path / "bad.txt").write_bytes(content)
    files = [f"data.files={tmp_path}/bad.txt", f"data.root={tmp_path}/prepared"]
    code, _, err = command(train_command.main, "run.name=bad", *files)
    assert code == 1
    assert "bad.txt" in err
    assert named in err
    assert not list(tmp_path.glob("prepared/*"))
    assert not (tmp_path / "bad").exists()
