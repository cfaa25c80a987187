"""python -m benchmarks.language: mistakes, continuing, equal parameters, real trainings."""

import json

import pytest

from benchmarks import language as command
from benchmarks import language_train
from benchmarks.language_models import MODELS, ORDER, overrides_of
from benchmarks.language_train import Job, finished
from benchmarks.saved import Refused
from model.network import LanguageModel
from tests.commands import small_run
from tests.composing import composed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "glb"], "invalid choice: 'glb'"),
        (["--seeds", "0"], "'0' is not a whole number from 1 to 1000"),
        (["--tokens", "2000"], "'2000' is not a whole number from 2048 to"),
        (["--jobs", "1.5"], "'1.5' is not a whole number from 1 to 1024"),
        (["--read", "x.json", "--seeds", "3", "--fresh"], "leave out --seeds --fresh"),
    ],
)
def test_mistakes_are_answered_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_all_models_have_nearly_the_same_parameters():
    sizes = {}
    for name in MODELS:
        settings = composed(*overrides_of(name))
        assert settings.model.mixers["gla"].conv_width == 0
        sizes[name] = LanguageModel(settings.model, 2048).num_parameters()
    assert max(sizes.values()) <= 1.002 * min(sizes.values()), sizes


def test_decays_of_the_published_order_differ_in_nothing_else():
    settings = {name: composed(*overrides_of(name)).model for name in ORDER}
    decays = {name: model.mixers["gla"].decay for name, model in settings.items()}
    assert decays == {"none": "none", "fixed": "retnet", "scalar": "simple_gla", "gla": "gla"}
    same = {"decay": "gla", "memory_length": settings["gla"].mixers["gla"].memory_length}
    of_gla = settings["gla"].mixers["gla"]
    for model in settings.values():
        assert model.mixers["gla"].model_copy(update=same) == of_gla
        assert model.layers == settings["gla"].layers
    published = [MODELS[name].published for name in ORDER]
    assert published == sorted(published, reverse=True)


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """Trainings that take no time; the names of those that were asked for."""
    asked = []

    def at_once(jobs, count, advance):
        for job in jobs:
            asked.append(job.folder.name)
            yield (
                job,
                {
                    "parameters": 7,
                    "val_nats_per_token": 3.0 - job.seed,
                    "train_seconds": 1.0,
                },
            )

    monkeypatch.setattr(command, "finished", at_once)
    monkeypatch.setattr(command, "_prepared", lambda root: "fingerprint")
    monkeypatch.setattr(command, "draw", lambda results, path: None)
    return asked


def test_the_same_command_trains_only_what_is_missing(trained, tmp_path, capsys):
    few = ["--output", str(tmp_path), "--models", "gla", "none"]
    assert command.main([*few, "--seeds", "1"]) == 0
    assert trained == ["none-seed0", "gla-seed0"]
    assert command.main([*few, "--seeds", "2"]) == 0
    assert trained[2:] == ["none-seed1", "gla-seed1"]
    saved = json.loads((tmp_path / "language.json").read_text())
    assert [(t["model"], t["seed"], t["nats_per_token"]) for t in saved["trainings"]] == [
        ("none", 0, 3.0), ("gla", 0, 3.0), ("none", 1, 2.0), ("gla", 1, 2.0)
    ]  # fmt: skip
    assert saved["trainings"][1]["overrides"] == overrides_of("gla")
    assert command.main(["--read", str(tmp_path / "language.json"), "--output", str(tmp_path)]) == 0
    assert command.main([*few, "--seeds", "1", "--tokens", "4096"]) == 2
    assert "tokens: saved 1500000, now 4096" in capsys.readouterr().err
    assert len(trained) == 4


def test_fresh_forgets_runs_and_results(trained, tmp_path):
    few = ["--output", str(tmp_path), "--models", "gla", "--seeds", "1"]
    run = tmp_path / "models/gla-seed0"
    run.mkdir(parents=True)
    assert command.main(few) == 0
    assert run.exists()
    assert command.main([*few, "--fresh"]) == 0
    assert not run.exists()
    assert trained == ["gla-seed0", "gla-seed0"]


def test_a_file_that_is_no_result_is_refused(trained, tmp_path, capsys):
    file = tmp_path / "language.json"
    file.write_text(json.dumps({"machine": {}, "settings": {}, "trainings": []}))
    assert command.main(["--read", str(file), "--output", str(tmp_path)]) == 2
    assert command.main(["--output", str(tmp_path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: --read {file}: not written by this command: machine.cpu: ")
    assert second.endswith("--fresh replaces it")
    assert not trained


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Makes jobs on a small text; a model of another name than "tiny" is refused by train.py."""
    text = "\n".join(json.dumps({"text": f"a text of number {n} " * 20}) for n in range(100))
    (tmp_path / "text.jsonl").write_text(text)
    own = small_run(tmp_path, tmp_path / "models")

    def overrides(model: str) -> list[str]:
        wrong = [] if model == "tiny" else ["model.layers=glb"]
        return [*own, "trainer.tokens=256", *wrong]

    monkeypatch.setattr(language_train, "overrides_of", overrides)
    monkeypatch.setattr(language_train, "_POLL_SECONDS", 0.1)
    return lambda model: Job(model, 0, 256, tmp_path / "models", tmp_path / "prepared")


def test_trainings_are_runs_of_train_py(tiny):
    seen = []
    ((job, summary),) = finished([tiny("tiny")], 2, seen.append)
    assert summary["tokens"] == 256 == seen[-1]
    assert summary["run"] == job.folder.name == "tiny-seed0"
    assert summary["val_nats_per_token"] > 0


def test_a_training_that_fails_says_why(tiny):
    with pytest.raises(
        Refused, match=r"glb-seed0 failed, .*glb-seed0\.log ends with\nerror: .*glb"
    ):
        list(finished([tiny("glb")], 1, lambda tokens: None))
