"""The experiments with the mixes of published hybrids: whole models, whole runs, few tokens."""

import json

import pytest

import train
from conf.cli import CONF
from tests.commands import losses, small_run
from tests.composing import composed

HYBRIDS = ["gla_3to1", *sorted(path.stem for path in (CONF / "experiment").glob("*_like.yaml"))]


@pytest.mark.long
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_learns_and_writes_a_text_from_its_cache(name, command, tmp_path, text):
    settings = [s for s in small_run(text, tmp_path) if not s.startswith("model.")]
    run = composed(f"experiment={name}").run.name
    code, _, errors = command(
        train.main, f"experiment={name}", *settings, "trainer.tokens=640", small=False
    )
    assert code == 0, errors
    assert (tmp_path / run / "sample.txt").read_text()
    loss = [value for (value,) in losses(tmp_path / run).values()]
    assert len(loss) == 5
    assert loss[-1] < loss[0]
    summary = json.loads((tmp_path / run / "summary.json").read_text())
    assert 2e6 < summary["parameters"] < 10e6
