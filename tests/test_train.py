"""The commands end to end on small texts: a run, its files, stopping and continuing, mistakes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import eval as eval_command
import generate as generate_command
import train as train_command
from model.training.checkpoint_io import load
from model.training.checkpoints import latest
from model.training.metrics_file import is_validation, read
from model.training.run_folder import RunFolder

SMALL = [
    "logger=none",
    "logger.log_every=1",
    "tokenizer.vocab_size=288",
    "data.seq_len=32",
    "data.validation_bytes=2000",
    "model.layers=gla retnet softmax",
    "model.d_model=16",
    "model.ffn_dim=24",
    "model.mixers.gla.heads=2",
    "model.mixers.gla.conv_width=4",
    "model.mixers.retnet.heads=2",
    "model.mixers.softmax.heads=2",
    "model.mixers.softmax.kv_heads=1",
    "trainer.batch_tokens=128",
    "trainer.micro_batch_rows=3",
    "trainer.tokens=2560",
    "trainer.minutes=null",
    "trainer.precision=32-true",
    "trainer.validate_every=7",
    "trainer.validation_rows=2",
    "trainer.validation_batches=3",
    "trainer.checkpoint_every=5",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Twenty small documents in JSON lines."""
    folder = tmp_path_factory.mktemp("text")
    rows = [
        {"text": "".join(f"item {i * j % 97} of list {i}\n" for j in range(40))} for i in range(20)
    ]
    (folder / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def command(tmp_path, text, monkeypatch, capsys):
    """Runs a command in this process; returns (exit code, standard output, standard error)."""

    def run(main, *overrides, small=True):
        shared = [f"data.root={text}/prepared", f"data.files={text}/*.jsonl"]
        place = [f"run.root={tmp_path}"] if main is train_command.main else [f"root={tmp_path}"]
        settings = [*SMALL, *shared] if main is train_command.main and small else []
        monkeypatch.setattr(sys, "argv", ["command", *settings, *place, *overrides])
        try:
            main()
            code = 0
        except SystemExit as exit:
            code = exit.code
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def losses(run: Path, *more: str) -> dict[int, tuple[float, ...]]:
    rows = [row for row in read(run / "metrics.jsonl") if not is_validation(row)]
    found = {row["step"]: tuple(row[key] for key in ("loss", *more)) for row in rows}
    assert len(found) == len(rows), "a step appears twice"
    return found


def test_a_run_leaves_what_a_user_expects(command, tmp_path):
    code, out, err = command(train_command.main, "run.name=first")
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
    assert validated == [7, 14]

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


def test_a_killed_run_continues_as_if_nothing_had_happened(command, tmp_path, text):
    longer = "trainer.tokens=25600"
    assert command(train_command.main, "run.name=whole", longer)[0] == 0
    arguments = [
        sys.executable,
        "train.py",
        *SMALL,
        f"data.root={text}/prepared",
        f"data.files={text}/*.jsonl",
        f"run.root={tmp_path}",
        "run.name=killed",
        longer,
    ]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    _wait_for(lambda: len(read(metrics)) >= 9 if metrics.exists() else False, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(losses(tmp_path / "killed"))
    assert done >= 8

    assert command(train_command.main, "run.name=killed", longer)[0] == 0
    whole, killed = (
        losses(tmp_path / name, "learning_rate", "grad_norm", "tokens")
        for name in ("whole", "killed")
    )
    assert killed == whole
    states = [
        load(latest(tmp_path / name / "checkpoints"))["state_dict"] for name in ("whole", "killed")
    ]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_ctrl_c_saves_and_says_how_to_continue(command, tmp_path, text):
    arguments = [
        sys.executable,
        "train.py",
        *SMALL,
        "trainer.tokens=1e6",
        f"data.root={text}/prepared",
        f"data.files={text}/*.jsonl",
        f"run.root={tmp_path}",
        "run.name=stopped",
    ]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    _wait_for(lambda: len(read(metrics)) >= 3 if metrics.exists() else False, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in err
    step = max(losses(tmp_path / "stopped"))
    assert latest(tmp_path / "stopped" / "checkpoints").name == f"step-{step:08d}.ckpt"


def _wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the command ended early: {process.returncode}"
        assert time.monotonic() < end
        time.sleep(0.02)


def test_micro_batches_change_no_number(command, tmp_path):
    assert command(train_command.main, "run.name=micro", "trainer.tokens=640")[0] == 0
    whole = ["run.name=at-once", "trainer.tokens=640", "trainer.micro_batch_rows=null"]
    assert command(train_command.main, *whole)[0] == 0
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


def test_a_checkpoint_of_another_architecture_is_refused(command, tmp_path):
    assert command(train_command.main, "run.name=wide", "trainer.tokens=128")[0] == 0
    code, _, err = command(
        train_command.main, "run.name=narrow", "run.init_from=wide", "model.ffn_dim=32"
    )
    assert code == 1
    assert "another architecture" in err
    assert "model.ffn_dim: checkpoint 24, given 32" in err
    assert not (tmp_path / "narrow").exists()


def test_a_run_is_not_continued_with_other_settings(command, tmp_path):
    assert command(train_command.main, "run.name=fixed", "trainer.tokens=128")[0] == 0
    code, _, err = command(train_command.main, "run.name=fixed", "optimizer.lr=0.5")
    assert code == 1
    assert "optimizer.lr: saved" in err
    assert "given 0.5" in err
    assert "run.name" in err


def test_damaged_checkpoints_are_not_passed_over_for_a_new_start(command, tmp_path):
    assert command(train_command.main, "run.name=cut", "trainer.tokens=1280")[0] == 0
    rows = (tmp_path / "cut" / "metrics.jsonl").read_text()
    files = list((tmp_path / "cut" / "checkpoints").glob("step-*.ckpt"))
    for file in files:
        file.write_bytes(file.read_bytes()[:1000])
    code, _, err = command(train_command.main, "run.name=cut", "trainer.tokens=1280")
    assert code == 1
    assert all(file.name in err for file in files)
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == rows


def test_a_run_has_one_process(command, tmp_path):
    assert command(train_command.main, "run.name=held", "trainer.tokens=128")[0] == 0
    with RunFolder(tmp_path / "held").locked():
        code, _, err = command(train_command.main, "run.name=held", "trainer.tokens=128")
    assert code == 1
    assert "being trained by another process" in err


def test_a_folder_that_cannot_be_made_is_one_message(command, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = command(train_command.main, f"run.root={tmp_path}/file")
    assert code == 1
    assert err.startswith("error:")
    assert "Traceback" not in err


def test_a_run_is_not_continued_on_other_data(command, tmp_path):
    other = tmp_path / "text"
    other.mkdir()
    for i in range(4):
        (other / f"{i}.txt").write_text(f"another text {i}\n" * 400)
    files = f"data.files={other}/*.txt"
    assert command(train_command.main, "run.name=bound", "trainer.tokens=128", files)[0] == 0
    (other / "4.txt").write_text("one more document\n" * 400)
    code, _, err = command(train_command.main, "run.name=bound", "trainer.tokens=128", files)
    assert code == 1
    assert "the text or the tokenizer changed" in err


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["model.layers=glaa softmax"], "there is no mixer 'glaa' (did you mean 'gla'?)"),
        (["model.layers="], "names no layer"),
        (["trainer.batch_tokens=100"], "not a whole number of rows"),
        (["schedule.warmup=90%"], "longer than the run's"),
        (["run.name=../up"], "run.name='../up'"),
        (["run.init_from=nowhere"], "there is no run 'nowhere'"),
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


def test_a_full_disk_leaves_the_earlier_checkpoint(command, tmp_path, text):
    assert command(train_command.main, "run.name=full", "trainer.tokens=640")[0] == 0
    before = latest(tmp_path / "full" / "checkpoints")
    config = tmp_path / "full" / "config.yaml"
    config.write_text(config.read_text().replace("tokens: 640", "tokens: 2560"))
    script = (
        "import resource, signal, sys, runpy\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({before.stat().st_size // 2},) * 2)\n"
        "runpy.run_path('train.py', run_name='__main__')\n"
    )
    arguments = [
        sys.executable,
        "-c",
        script,
        *SMALL,
        f"data.root={text}/prepared",
        f"data.files={text}/*.jsonl",
        f"run.root={tmp_path}",
        "run.name=full",
    ]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env={**os.environ}, timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert "could not write" in done.stderr
    assert "Traceback" not in done.stderr
    assert latest(tmp_path / "full" / "checkpoints") == before
    assert load(before)["global_step"] == 5
    assert command(train_command.main, "run.name=full")[0] == 0
