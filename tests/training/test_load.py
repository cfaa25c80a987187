"""Finding runs and checkpoints by what a user types."""

import zipfile
from pathlib import Path

import pytest

from model.training.load import checkpoint_of, existing_run

FILE = Path("runs/data/checkpoints/step-00000001.ckpt")


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """The run `data` in `runs`, beside another folder of that name."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "runs/half", FILE.parent):
        Path(folder).mkdir(parents=True)
    Path("runs/data/config.yaml").write_text("seed: 0\n")
    with zipfile.ZipFile(FILE, "w") as file:
        file.writestr("x", "")


@pytest.mark.parametrize("source", ["data", "runs/data", "runs/data/", str(FILE)])
def test_a_name_a_folder_and_a_file_lead_to_the_checkpoint(source):
    assert checkpoint_of(source, "runs").resolve() == FILE.resolve()


def test_a_run_in_the_working_directory_leads_to_its_checkpoint(monkeypatch):
    monkeypatch.chdir("runs/data")
    assert checkpoint_of(".", "runs").name == FILE.name


@pytest.mark.parametrize(
    ("run", "named"),
    [
        ("", "'' is no name of a run; runs in runs/: data"),
        ("a/b", "'a/b' is no name of a run; runs in runs/: data"),
        ("../runs/data", "for that run the name is data and the folder of runs is /"),
        ("half", r"runs/half holds no run \(no config.yaml\); runs in runs/: data"),
        ("nowhere", "runs in runs/: data. Train one: python train.py run.name=nowhere"),
    ],
)
def test_a_run_that_is_not_there_is_told_with_those_that_are(run, named):
    with pytest.raises(ValueError, match=named):
        existing_run("runs", run)


def test_copies_of_checkpoints_under_other_names_are_passed_over():
    FILE.with_name("step-copy.ckpt").write_text("")
    FILE.with_name("step-00000002 (1).ckpt").write_text("")
    assert checkpoint_of("data", "runs").name == FILE.name


def test_a_run_whose_checkpoints_are_all_damaged_says_so():
    FILE.write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"step-00000001.ckpt \(is cut off \(0 bytes are left\)\)$"
    ):
        checkpoint_of("data", "runs")
