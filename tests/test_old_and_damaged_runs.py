"""Runs that older or other code wrote, and runs of which a file was lost or cut."""

from pathlib import Path

import pytest
import torch
import yaml

import eval as eval_command
import generate as generate_command
import train as train_command
from conf.cli import check
from conf.schema import TrainSettings
from conf.settings import Settings
from model.training.checkpoints import latest
from model.training.run_folder import RunFolder
from tests.commands import losses

SHORT = ["run.name=run", "trainer.tokens=128", "trainer.checkpoint_every=1"]


def test_a_run_of_the_first_version_is_read_with_what_its_code_did():
    text = (Path(__file__).parent / "training" / "first_run.yaml").read_text()
    settings = check(yaml.safe_load(text), TrainSettings, saved=True)
    assert settings.model.mixers["softmax"].recall_init is False
    assert settings.model.mixers["gla"].write == "additive"
    assert settings.trainer.minutes is None
    with pytest.raises(ValueError, match=r"recall_init: missing; give it as"):
        check(yaml.safe_load(text), TrainSettings)


def without_newer_keys(values, schemas):
    """Plain settings as the first version would have saved them."""
    if not isinstance(values, dict):
        return values
    newer = {
        key for schema in schemas if values.keys() >= schema.before.keys() for key in schema.before
    }
    return {
        key: without_newer_keys(value, schemas) for key, value in values.items() if key not in newer
    }


def test_an_old_run_generates_is_evaluated_and_continues(command, tmp_path):
    plain = ["model.mixers.softmax.recall_init=false", "model.mixers.softmax.conv_width=0"]
    longer = [*SHORT, *plain, "trainer.tokens=512"]
    assert command(train_command.main, *longer)[0] == 0
    run = tmp_path / "run"
    before = losses(run)
    schemas = [schema for schema in every_schema(Settings) if schema.before]
    config = without_newer_keys(RunFolder(run).config(), schemas)
    del config["model"]["mixers"]["kda"]
    assert "recall_init" not in config["model"]["mixers"]["softmax"]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for path in (run / "checkpoints").glob("step-*.ckpt"):
        checkpoint = torch.load(path)
        torch.save(checkpoint | {"model_config": config["model"]}, path)
    for main in (generate_command.main, eval_command.main):
        code, _, err = command(main, "run=run")
        assert code == 0, err
    (run / "checkpoints" / "latest").write_text("step-00000003.ckpt\n")  # as if killed after it
    code, _, err = command(train_command.main, *longer)
    assert code == 0, err
    assert losses(run) == before
    branch = ["run.name=branch", "run.init_from=run", "model.ffn_dim=32", *plain]
    code, _, err = command(train_command.main, *branch)
    assert code == 1
    assert "Give the checkpoint's values: model.ffn_dim=24, or" in err


def every_schema(schema):
    return [schema, *(sub for one in schema.__subclasses__() for sub in every_schema(one))]


def test_a_run_of_other_code_is_named_with_that_code(command, trained, tmp_path):
    trained("run")
    run = tmp_path / "run"
    config = RunFolder(run).config()
    config["model"]["mixers"]["softmax"]["later_option"] = 4
    del config["model"]["mixers"]["softmax"]["heads"]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    path = latest(run / "checkpoints")
    torch.save(torch.load(path) | {"model_config": config["model"]}, path)
    for main in (train_command.main, eval_command.main, generate_command.main):
        given = SHORT if main is train_command.main else ["run=run"]
        code, _, err = command(main, *given)
        assert code == 1
        assert "was written by other code" in err
        assert "mixers.softmax.heads: missing\n" in err
        assert "mixers.softmax.later_option'" in err
        assert f"git checkout {RunFolder(run).code}" in err


@pytest.mark.long
def test_a_lost_or_cut_file_is_named(command, tmp_path):
    limit = [*SHORT, "trainer.minutes=1"]
    assert command(train_command.main, *limit)[0] == 0
    run = tmp_path / "run"
    commands = {
        "config.yaml": (train_command.main, eval_command.main),
        "revision.json": (train_command.main,),
        "data.json": (train_command.main, eval_command.main, generate_command.main),
        "budget.json": (train_command.main,),
        "checkpoints/best": (train_command.main,),
        "tokenizer.model": (generate_command.main,),
    }
    for name, mains in commands.items():
        content = (run / name).read_bytes()
        for damaged in (content[: len(content) // 2], b"[]"):
            (run / name).write_bytes(damaged)
            for main in mains:
                code, _, err = command(
                    main, *(limit if main is train_command.main else ["run=run"])
                )
                assert code == 1, (name, damaged)
                assert err.count("error:") == 1
                assert str(run / name) in err
                assert "Traceback" not in err
        (run / name).write_bytes(content)
    (run / "budget.json").rename(run / "elsewhere")
    code, _, err = command(train_command.main, *limit)
    assert code == 1
    assert "budget.json is missing: restore it" in err
    (run / "elsewhere").rename(run / "budget.json")
    assert command(train_command.main, *limit)[0] == 0


@pytest.mark.parametrize(
    ("other", "ids"),
    [
        (["tokenizer.vocab_size=290"], "(sentencepiece, 290 ids"),
        (
            ["tokenizer.sample_bytes=3000", "tokenizer.character_coverage=0.99"],
            "(sentencepiece, 288 ids",
        ),
    ],
    ids=["size", "same size"],
)
def test_weights_for_another_tokenizer_are_refused(command, trained, tmp_path, other, ids):
    trained("run")
    branch = ["run.name=branch", "run.init_from=run", "trainer.tokens=128", *other]
    code, _, err = command(train_command.main, *branch)
    assert code == 1
    tokenizer = f"tokenizer.path={tmp_path}/run/tokenizer.model"
    assert ids in err
    assert tokenizer in err
    assert not (tmp_path / "branch").exists()
    assert command(train_command.main, *branch, tokenizer)[0] == 0

    copy = tmp_path / "copy.ckpt"  # in no run's folder: nothing is known but the size
    copy.write_bytes(latest(tmp_path / "run" / "checkpoints").read_bytes())
    alone = [*branch, "run.name=alone", f"run.init_from={copy}"]
    code, out, err = command(train_command.main, *alone)
    assert "its tokenizer is not known" in out
    assert code == (1 if "290" in ids else 0)
    if code:
        assert "knows 288 token ids, and the data set's tokenizer has 290" in err


def test_a_schedule_that_minutes_make_too_long_is_refused_and_leaves_nothing(command, tmp_path):
    limit = ["run.name=run", "trainer.tokens=1e9", "trainer.minutes=0.001"]
    code, _, err = command(train_command.main, *limit, "schedule.warmup=1e6")
    assert code == 1
    assert "schedule.warmup (1,000,000 tokens)" in err
    assert "fit into trainer.minutes=0.001" in err
    assert not (tmp_path / "run").exists()
    assert command(train_command.main, *limit, "schedule.warmup=2%")[0] == 0
