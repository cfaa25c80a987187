"""CONTRIBUTING's examples, followed to the letter: a new preset, a new feature map."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import train
from conf import cli
from tests.commands import losses, small_run

ROOT = cli.CONF.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def add_preset(conf: Path) -> str:
    """Does what the section on presets says, in a copy of conf/; returns the preset's name."""
    name, text = re.search(
        r"`conf/mixer/(\w+)\.yaml`:\n\n```yaml\n(.*?)```", CONTRIBUTING, re.DOTALL
    ).groups()
    (conf / "mixer" / f"{name}.yaml").write_text(text)
    return name


def list_preset(conf: Path, name: str) -> None:
    """Does the same with the line that makes the preset one of every run's."""
    line = re.search(rf"conf/train\.yaml: `(.* {name})`", CONTRIBUTING)[1]
    insert(conf / "train.yaml", f"  {line}\n", before="  - model: tiny\n")


def add_feature_map(model: Path) -> str:
    """Does what the section on feature maps says, in a copy of model/; returns the map's name."""
    code, line = re.findall(
        r"```python\n(.*?)```", CONTRIBUTING.split("## A new feature map")[1], re.DOTALL
    )[:2]
    with (model / "feature_maps/elementary.py").open("a") as file:
        file.write(f"\n\n{code}")
    insert(model / "feature_maps/__init__.py", f"    {line}", before="}  # fmt: skip\n")
    return re.match(r"def (\w+)", code)[1]


def insert(path: Path, text: str, before: str) -> None:
    head, tail = path.read_text().split(before)
    path.write_text(head + text + before + tail)


@pytest.mark.parametrize("listed", [False, True])
def test_a_new_preset_is_one_file_and_one_line_to_list_it(listed, tmp_path, monkeypatch, command):
    shutil.copytree(cli.CONF, tmp_path / "conf")
    name = add_preset(tmp_path / "conf")
    typed = re.search(rf"`python train\.py (\+.*={name})\n", CONTRIBUTING)[1].split()
    if listed:
        list_preset(tmp_path / "conf", name)
        typed = []
    monkeypatch.setattr(cli, "CONF", tmp_path / "conf")
    mix = [*typed, f"model.layers={name} softmax", f"model.mixers.{name}.heads=2"]
    code, out, errors = command(train.main, "run.name=new", "trainer.tokens=128", *mix)
    assert code == 0, errors
    assert name in out
    assert list(losses(tmp_path / "new")) == [1]


@pytest.mark.long
def test_a_new_feature_map_is_one_function_and_one_line(tmp_path, text):
    """With the new preset, and in a process of its own: types are made when code is imported."""
    copy = tmp_path / "copy"
    for folder in ("conf", "data", "kernels", "model"):
        shutil.copytree(ROOT / folder, copy / folder)
    for command in ("train.py", "eval.py", "generate.py"):
        shutil.copy(ROOT / command, copy)
    preset, name = add_preset(copy / "conf"), add_feature_map(copy / "model")
    list_preset(copy / "conf", preset)
    assert not (ROOT / "conf/mixer" / f"{preset}.yaml").exists()

    def trained(*overrides: str) -> subprocess.CompletedProcess:
        key = f"model.mixers.{preset}"
        mix = [f"model.layers={preset} softmax", f"{key}.heads=2", f"{key}.feature_map={name}"]
        settings = [*small_run(text, tmp_path), "run.name=new", "trainer.tokens=128", *mix]
        return subprocess.run(
            [sys.executable, "train.py", *settings, *(f"{key}.{option}" for option in overrides)],
            cwd=copy, capture_output=True, text=True, timeout=250,
        )  # fmt: skip

    refused = trained("normalize=true", "rope_base=100.0")
    assert refused.returncode == 1
    assert "rotated features have a signed kernel" in refused.stderr
    done = trained("normalize=true")
    assert done.returncode == 0, done.stderr
    assert list(losses(tmp_path / "new")) == [1]
