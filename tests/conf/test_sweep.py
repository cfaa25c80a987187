"""A sweep is refused as a whole, before its first job, when any of its jobs would be."""

from pathlib import Path

import pytest

from conf.cli import rewrite_overrides, validate
from conf.schema import TrainSettings
from conf.sweep import check_sweep


def folders_of(*typed: str) -> list[str]:
    """The run folders of a sweep's jobs, in order."""
    folders = []

    def check(config):
        run = validate(config, TrainSettings).run
        folders.append(Path(run.root, run.name))
        return folders[-1]

    check_sweep("train", rewrite_overrides(list(typed), sweeping=True), check)
    return [str(folder) for folder in folders]


@pytest.mark.parametrize(
    ("typed", "folders"),
    [
        (["run.name=lr-${optimizer.lr}", "optimizer.lr=1e-3,0.003"], ["lr-0.001", "lr-0.003"]),
        (
            [
                "run.name=${hydra:runtime.choices.optimizer}-${seed}",
                "optimizer=glob(*)",
                "seed=0,1",
            ],
            ["adamw-0", "adamw-1", "muon-0", "muon-1"],
        ),
        (["run.name=j${hydra:job.num}", "model.layers=(gla gla)*2,softmax"], ["j0", "j1"]),
        (["experiment=softmax_only,adamw_cosine"], ["softmax-only", "adamw-cosine"]),
        (["run.name=a,b", "seed=1"], ["a", "b"]),
        (["run.root=x,y"], ["x/quickstart", "y/quickstart"]),
    ],
)
def test_every_job_is_checked_with_its_own_settings(typed, folders):
    assert folders_of(*typed) == [f if "/" in f else f"runs/{f}" for f in folders]


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        (["optimizer.lr=1e-3,3e-3"], "${optimizer.lr}"),
        (["optimizer.lr=1e-3,3e-3", "seed=1,2"], "${optimizer.lr}-${seed}"),
        (["optimizer=muon,adamw"], "${hydra:runtime.choices.optimizer}"),
        (["model.layers=(gla)*2,softmax"], "${hydra:job.num}"),
        (["mixer@model.mixers.gla=gla,linear"], "${hydra:job.num}"),
        (["seed=1,1"], "${hydra:job.num}"),
    ],
)
def test_jobs_that_would_be_one_run_are_refused_with_a_name_that_works(typed, suggestion):
    with pytest.raises(ValueError, match=r"job 0 \(.*\) and job 1 \(.*\) of the sweep") as error:
        folders_of(*typed)
    name = f"quickstart-{suggestion}"
    assert str(error.value).endswith(
        f"would both be the run runs/quickstart; give each a name of its own: run.name='{name}'"
    )
    folders = folders_of(*typed, f"run.name={name}")
    assert len(set(folders)) == len(folders) > 1


def test_a_mistake_in_a_later_job_is_named_with_the_job():
    with pytest.raises(ValueError, match=r"^job 1 \(seed=oops\) of the sweep: seed='oops'"):
        folders_of("run.name=s${seed}", "seed=1,oops")


def test_jobs_of_another_sweeper_are_left_to_it():
    assert folders_of("seed=1,2", "hydra/sweeper=basic") == []
    assert folders_of("seed=1,2", "hydra.sweeper.max_batch_size=1") == []


def test_a_configuration_that_hydra_cannot_compose_is_left_to_hydra():
    assert folders_of("seed=1,2", "hydra/launcher=nothing") == []
