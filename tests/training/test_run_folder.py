import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel

from model.training.differences import ABSENT, changed
from model.training.run_folder import RunFolder, check_run_name, plain

CONFIG = {"model": {"width": 64, "layers": ["gla", "softmax"]}, "trainer": {"max_steps": 20}}


def test_a_new_run_holds_its_configuration_and_revision(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "first")
    assert not folder.exists
    assert folder.open(CONFIG, may_change=[]) is False
    assert folder.exists
    assert folder.config() == CONFIG
    revision = json.loads(folder.revision_file.read_text())
    for key in ("git_revision", "python", "torch", "lightning", "hostname", "command"):
        assert key in revision
    if revision["diff"] is not None:
        assert (folder.path / revision["diff"]).read_text().startswith("diff --git")
    assert folder.checkpoints.is_dir()
    assert folder.plots.is_dir()
    assert os.listdir(folder.path.parent) == ["first"]


def test_the_same_configuration_continues_and_notes_the_start(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.open(CONFIG, may_change=[])
    assert folder.open(CONFIG, may_change=[]) is True
    assert len(json.loads(folder.revision_file.read_text())["continued"]) == 1


def test_an_allowed_change_continues_and_is_saved(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.open(CONFIG, may_change=[])
    longer = {**CONFIG, "trainer": {"max_steps": 40}}
    assert folder.open(longer, may_change=["trainer"]) is True
    assert folder.config() == longer


def test_other_changes_are_refused_naming_each_and_the_way_out(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.open(CONFIG, may_change=[])
    other = {"model": {"width": 128, "layers": ["gla"]}, "trainer": {"max_steps": 40}}
    with pytest.raises(ValueError, match="another configuration") as error:
        folder.open(other, may_change=["trainer.max_steps"])
    message = str(error.value)
    assert "model.width: saved 64, given 128" in message
    assert "model.layers: saved ['gla', 'softmax'], given ['gla']" in message
    assert "trainer.max_steps: saved" not in message
    assert "run.name" in message
    assert "init_from=" in message
    assert folder.config() == CONFIG


def test_allowing_a_key_does_not_allow_a_longer_name():
    folder = RunFolder("a")
    from model.training.run_folder import check_unchanged

    with pytest.raises(ValueError, match=r"model_b\.x"):
        check_unchanged(folder, {"model_b": {"x": 1}}, {"model_b": {"x": 2}}, ["model"])


def test_changed_lists_missing_new_and_retyped_keys():
    saved = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    given = {"a": {"x": 1, "y": [1, 3]}, "b": True, "c": None}
    assert changed(saved, given) == [
        ("a.y", [1, 2], [1, 3]),
        ("b", 1, True),
        ("c", ABSENT, None),
    ]
    assert changed(saved, saved) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "../a", "a..b", "-a", "a b", ".a"])
def test_names_that_leave_the_folder_are_refused(name):
    with pytest.raises(ValueError, match=r"run\.name"):
        check_run_name(name)
    with pytest.raises(ValueError, match=r"run\.name"):
        RunFolder.named("runs", name)


def test_usual_names_are_accepted():
    for name in ("gla-small-1", "2048_wide.v2", "lr=3e-4,seed=1"):
        assert RunFolder.named("runs", name).path == Path("runs") / name


def test_a_killed_start_leaves_nothing_that_blocks(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from model.training import run_folder\n"
        "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        "run_folder._revision = die\n"
        "run_folder.RunFolder(sys.argv[1]).open({'a': 1}, may_change=[])\n"
    )
    path = tmp_path / "a"
    killed = subprocess.run([sys.executable, "-c", script, str(path)], cwd=Path.cwd())
    assert killed.returncode == -signal.SIGKILL
    assert not path.exists()
    assert len(os.listdir(tmp_path)) == 1
    folder = RunFolder(path)
    folder.open(CONFIG, may_change=[])
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_with_other_files_is_not_taken_over(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="holds no run"):
        RunFolder(tmp_path / "a").open(CONFIG, may_change=[])


def test_an_empty_folder_is_used(tmp_path):
    (tmp_path / "a").mkdir()
    assert RunFolder(tmp_path / "a").open(CONFIG, may_change=[]) is False


def test_plain_resolves_references_and_keeps_lists():
    config = OmegaConf.create(
        {
            "name": "${model.name}_${optim.lr}",
            "model": {"name": "gla", "pattern": ["gla", "softmax"]},
            "optim": {"lr": 0.1},
            "unused": "???",
            "root": Path("data/text"),
        }
    )
    result = plain(config)
    assert result == {
        "name": "gla_0.1",
        "model": {"name": "gla", "pattern": ["gla", "softmax"]},
        "optim": {"lr": 0.1},
        "unused": "???",
        "root": "data/text",
    }
    assert type(result["model"]["pattern"]) is list
    assert json.loads(json.dumps(result)) == result


def test_plain_accepts_typed_sections():
    class Section(BaseModel):
        width: int
        path: Path

    assert plain({"model": Section(width=3, path=Path("x"))}) == {
        "model": {"width": 3, "path": "x"}
    }


def test_plain_refuses_secrets_and_does_not_print_them(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789")
    with pytest.raises(ValueError, match=r"logger\.key.*\$WANDB_API_KEY") as error:
        plain({"logger": {"key": "0123456789abcdef0123456789"}})
    assert "0123456789abcdef" not in str(error.value)


def test_plain_refuses_objects():
    with pytest.raises(TypeError, match=r"model\.f"):
        plain({"model": {"f": object()}})
