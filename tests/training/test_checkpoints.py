import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from standin import Standin, StandinData, batch_of, make_trainer

from model.training.architecture import check_architecture, fitted_state
from model.training.checkpoint_io import CheckpointError, load, write
from model.training.checkpoints import Checkpoints, best, latest, read_best, resumable
from tests.full_disk import files_end_at

CONFIG = {"width": 4, "mixers": {"gla": {"heads": 2}}}


def checkpoints(folder, every_steps=5, keep_last=100, keep_every=0):
    return Checkpoints(folder, every_steps, keep_last, keep_every, CONFIG)


def fit(folder, module=None, resume=None, max_steps=20, trainer_options=None, **options):
    module = module or Standin()
    trainer = make_trainer([checkpoints(folder, **options)], max_steps, **(trainer_options or {}))
    trainer.fit(module, datamodule=StandinData(), ckpt_path=resume)
    return module


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_saves_on_schedule_and_at_the_end_once_per_step(tmp_path, monkeypatch):
    written = []

    def recorded(checkpoint, path):
        written.append(path.name)
        write(checkpoint, path)

    monkeypatch.setattr("model.training.checkpoint_io.write", recorded)
    fit(tmp_path, every_steps=5, max_steps=12)
    assert written == [f"step-{step:08d}.ckpt" for step in (5, 10, 12)]
    assert latest(tmp_path).name == "step-00000012.ckpt"
    assert (tmp_path / "latest").read_text() == "step-00000012.ckpt\n"
    written.clear()
    fit(tmp_path / "b", every_steps=4, max_steps=8)
    assert written == ["step-00000004.ckpt", "step-00000008.ckpt"]


@pytest.mark.parametrize("validate_every", [10**6, 7, 10])
def test_resumed_steps_equal_the_uninterrupted_run(tmp_path, validate_every):
    options = {"val_check_interval": validate_every}
    whole = fit(tmp_path / "whole", trainer_options=options)
    assert [step for step, _ in whole.seen] == list(range(20))
    for stop in (7, 10, 20):
        folder = tmp_path / f"stop{stop}"
        fit(folder, max_steps=stop, trainer_options=options)
        resumed = fit(folder, resume=latest(folder), trainer_options=options)
        assert resumed.seen == whole.seen[stop:]
        for name, value in whole.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[name]), name
        assert latest(folder).name == "step-00000020.ckpt"


@pytest.mark.parametrize("every_steps", [7, 10])
def test_resumed_from_the_middle_equals_the_uninterrupted_run(tmp_path, every_steps):
    options = {"val_check_interval": every_steps}
    whole = fit(tmp_path, every_steps=every_steps, trainer_options=options)
    resumed = fit(
        tmp_path / "b",
        resume=tmp_path / f"step-{every_steps:08d}.ckpt",
        trainer_options=options,
    )
    assert resumed.seen == whole.seen[every_steps:]


def test_retention_keeps_the_last_the_milestones_and_the_best(tmp_path):
    fit(
        tmp_path,
        every_steps=2,
        keep_last=2,
        keep_every=8,
        trainer_options={"val_check_interval": 3, "limit_val_batches": 1},
    )
    entry = read_best(tmp_path)
    kept = {8, 16, 18, 20} | {entry["step"]}
    assert names(tmp_path) == sorted(["best", "latest", *(f"step-{s:08d}.ckpt" for s in kept)])
    assert best(tmp_path).is_file()
    assert entry["step"] % 3 == 0


def test_best_names_the_lowest_validation_value(tmp_path):
    class Scripted(Standin):
        def validation_step(self, batch, batch_idx):
            values = {3: 4.0, 6: 2.5, 9: float("nan"), 12: 3.0}
            self.log("val_bits_per_byte", values[self.global_step])

    fit(
        tmp_path,
        Scripted(),
        every_steps=100,
        keep_last=1,
        max_steps=13,
        trainer_options={"val_check_interval": 3},
    )
    assert json.loads((tmp_path / "best").read_text()) == {
        "checkpoint": "step-00000006.ckpt",
        "step": 6,
        "val_bits_per_byte": 2.5,
    }
    assert names(tmp_path) == ["best", "latest", "step-00000006.ckpt", "step-00000013.ckpt"]


def test_weights_that_are_not_finite_are_never_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"network\.0\.weight") as error:
        fit(tmp_path, Standin(nan_at=13), every_steps=5, keep_last=1)
    assert "NaN" in str(error.value)
    assert str(tmp_path / "step-00000010.ckpt") in str(error.value)
    assert names(tmp_path) == ["latest", "step-00000010.ckpt"]
    state = load(latest(tmp_path))["state_dict"]
    assert all(torch.isfinite(state[name]).all() for name in state if name != "running_maximum")
    assert state["running_maximum"] == float("-inf")


def test_an_optimizer_moment_that_is_not_finite_is_refused(tmp_path):
    class Poisoned(Standin):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            state = next(iter(self.trainer.optimizers[0].state.values()))
            state["exp_avg"].view(-1)[0] = float("inf")

    with pytest.raises(CheckpointError, match="exp_avg"):
        fit(tmp_path, Poisoned(), every_steps=1)
    assert names(tmp_path) == []


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path):
    """A real one: the process may not write files past a limit that one checkpoint exceeds."""
    folder = tmp_path / "checkpoints"
    fit(folder, max_steps=5)
    size = latest(folder).stat().st_size
    with (
        files_end_at(size // 2),
        pytest.raises(CheckpointError, match="could not write") as error,
    ):
        fit(folder, resume=latest(folder))
    message = str(error.value)
    assert "step-00000010.ckpt" in message
    assert "File too large" in message
    assert "Free space" in message
    assert "step-00000005.ckpt is untouched and loadable" in message
    assert names(folder) == ["latest", "step-00000005.ckpt"]
    assert load(latest(folder))["global_step"] == 5


def test_no_room_is_noticed_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(CheckpointError, match="No space left") as error:
        write({"x": torch.zeros(1000)}, tmp_path / "step-00000001.ckpt")
    assert names(tmp_path) == []
    assert "It needs about 0.0 MB, 0.0 MB were free" in str(error.value)


@pytest.mark.long
def test_killed_while_saving_the_previous_one_is_used(tmp_path):
    fit(tmp_path, max_steps=5)
    script = (
        "import os, signal, sys\n"
        "sys.path[:0] = ['.', 'tests/training']\n"
        "from test_checkpoints import fit\n"
        "from pathlib import Path\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "folder = Path(sys.argv[1])\n"
        "fit(folder, resume=folder / 'step-00000005.ckpt')\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert names(tmp_path) == ["latest", "step-00000005.ckpt", "step-00000010.ckpt.partial"]
    assert latest(tmp_path).name == "step-00000005.ckpt"
    resumed = fit(tmp_path, resume=latest(tmp_path))
    assert len(resumed.seen) == 15
    assert not list(tmp_path.glob("*.partial"))


def test_latest_falls_back_to_the_highest_complete_step(tmp_path):
    assert latest(tmp_path) is None
    fit(tmp_path, max_steps=10)
    (tmp_path / "latest").unlink()
    assert latest(tmp_path).name == "step-00000010.ckpt"
    (tmp_path / "latest").write_text("step-00000099.ckpt\n")
    assert latest(tmp_path).name == "step-00000010.ckpt"
    cut_off(tmp_path / "step-00000010.ckpt")
    assert latest(tmp_path).name == "step-00000005.ckpt"


def test_what_is_passed_over_is_named_in_plain_sentences(tmp_path, capsys):
    fit(tmp_path, max_steps=10)
    capsys.readouterr()
    latest(tmp_path)
    assert capsys.readouterr().err == ""
    cut_off(tmp_path / "step-00000010.ckpt")
    size = (tmp_path / "step-00000010.ckpt").stat().st_size
    latest(tmp_path)
    cut = f"is cut off ({size} bytes are left)\n"
    pointer = f"warning: {tmp_path}/latest names step-000000"
    assert capsys.readouterr().err == f"{pointer}10.ckpt, but that file {cut}"
    (tmp_path / "latest").write_text("step-00000099.ckpt\n")
    latest(tmp_path)
    assert capsys.readouterr().err == (
        f"{pointer}99.ckpt, but that file is missing\n"
        f"warning: passed over {tmp_path}/step-00000010.ckpt: the file {cut}"
    )


def test_loading_a_cut_off_or_missing_file_says_so(tmp_path):
    fit(tmp_path, max_steps=5)
    path = tmp_path / "step-00000005.ckpt"
    for size in (path.stat().st_size // 2, 2, 0):
        os.truncate(path, size)
        with pytest.raises(CheckpointError, match=rf"is cut off \({size} bytes.* remove it"):
            load(path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load(tmp_path / "step-00000006.ckpt")


def numpy_archive(path):
    with path.open("wb") as file:
        np.savez(file, a=1)


def overwritten(path):
    torch.save({"state_dict": {}, "model_config": {}}, path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"state_dict", b"\x00\xff" * 5))


@pytest.mark.parametrize(
    ("write_file", "message"),
    [
        (lambda path: path.write_text("hello"), "is no checkpoint"),
        (numpy_archive, r"cannot be read \(.*a\.npy\)"),
        (lambda path: torch.save([1], path), "it has no state_dict and no model_config"),
        (lambda path: torch.save({"state_dict": {}}, path), "it has no model_config"),
        (lambda path: torch.save({"x": Path("a")}, path), r"cannot be read \(Weights only"),
        (overwritten, "cannot be read"),
    ],
    ids=["text", "numpy", "list", "weights", "pickled", "overwritten"],
)
def test_a_file_that_is_no_checkpoint_is_not_called_cut_off(tmp_path, write_file, message):
    path = tmp_path / "mine.ckpt"
    write_file(path)
    with pytest.raises(CheckpointError, match=rf"mine\.ckpt .*{message}") as error:
        load(path)
    assert "cut off" not in str(error.value)
    assert "Give a file that training wrote" in str(error.value)


def test_a_run_without_a_complete_checkpoint_is_not_resumable(tmp_path):
    assert not resumable(tmp_path)
    fit(tmp_path, max_steps=10)
    cut_off(tmp_path / "step-00000010.ckpt")
    assert resumable(tmp_path)
    (tmp_path / "step-00000005.ckpt").write_text("hello")
    with pytest.raises(CheckpointError) as error:
        resumable(tmp_path)
    assert "step-00000005.ckpt is no checkpoint; step-00000010.ckpt is cut off" in str(error.value)


def cut_off(path):
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)


@pytest.fixture
def distributed_leaves_no_trace():
    before = dict(os.environ)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.mark.usefixtures("distributed_leaves_no_trace")
def test_compiled_ddp_and_plain_checkpoints_are_interchangeable(tmp_path):
    kinds = {
        "plain": (False, {}),
        "compiled": (True, {}),
        "ddp": (False, {"strategy": "ddp"}),
        "compiled-ddp": (True, {"strategy": "ddp"}),
    }
    batch = batch_of(5)
    logits = {}
    for kind, (compiled, options) in kinds.items():
        module = fit(tmp_path / kind, Standin(compiled=compiled), trainer_options=options)
        logits[kind] = module.network(batch).detach()
    keys = {kind: list(load(latest(tmp_path / kind))["state_dict"]) for kind in kinds}
    assert all(keys[kind] == keys["plain"] for kind in kinds)
    assert not any("_orig_mod" in key or key.startswith("module.") for key in keys["plain"])
    for kind in kinds:
        for compiled in (False, True):
            module = Standin(compiled=compiled)
            state = fitted_state(module, load(latest(tmp_path / kind)), CONFIG)
            module.load_state_dict(state, strict=True)
            assert torch.equal(module.network(batch), logits[kind])
    resumed = fit(
        tmp_path / "other",
        Standin(compiled=True),
        resume=latest(tmp_path / "plain"),
        max_steps=22,
    )
    assert [step for step, _ in resumed.seen] == [20, 21]


def test_another_architecture_is_refused_naming_tensors_keys_and_the_way_out(tmp_path):
    fit(tmp_path, max_steps=5)
    other = {"width": 6, "mixers": {"gla": {"heads": 2}}}
    with pytest.raises(ValueError, match="another architecture") as error:
        check_architecture(Standin(width=6), load(latest(tmp_path)), other)
    message = str(error.value)
    assert "3 of its tensors differ" in message
    assert "network.0.weight: [4, 4] in the checkpoint, [6, 4] in this model" in message
    assert "model.width: checkpoint 4, given 6" in message
    assert "model.width=4" in message
    with pytest.raises(ValueError, match="another architecture"):
        fit(tmp_path, Standin(width=6), resume=latest(tmp_path))
    check_architecture(Standin(), load(latest(tmp_path)), CONFIG)
    # What to type is written as it is typed.
    saved = load(latest(tmp_path)) | {"model_config": CONFIG | {"head_dim": None}}
    with pytest.raises(ValueError, match=r"model\.head_dim=null"):
        check_architecture(Standin(width=6), saved, CONFIG | {"head_dim": 2})


def test_a_long_list_of_differences_is_cut_and_counted(tmp_path):
    state = {f"layer.{index}": torch.zeros(1) for index in range(30)}
    with pytest.raises(ValueError, match="and 30 more"):
        check_architecture(Standin(), {"state_dict": state}, CONFIG)


def test_settings_below_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match="every_steps=0"):
        checkpoints(tmp_path, every_steps=0)


def test_a_damaged_best_pointer_is_named(tmp_path):
    (tmp_path / "best").write_text('{"step": 3')
    with pytest.raises(CheckpointError, match=r"best is damaged .*remove it"):
        best(tmp_path)
