"""Runs on mixtures and in stages, through the commands: what is printed, refused and continued."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import data.inspect as inspect_command
import eval as eval_command
import train as train_command
from data.binding import bind, bound
from data.epochs import repeats
from data.index import read_index
from data.prepare import prepare
from data.rows import RowStage, TrainRows, row_stages
from data.sets import Prepared, prepared_sets, weights_of
from model.training.checkpoint_io import load
from model.training.load import saved_settings
from model.training.metrics_file import is_validation, read
from model.training.run_folder import RunFolder
from model.training.stages import stages_of
from tests.commands import SMALL, inspected, losses
from tests.composing import composed

STAGES = (
    "trainer.stages=[{until_tokens:1280,seq_len:16},"
    "{until_tokens:1920,weights:{code:1},rope_base:5000},{batch_tokens:256,rope_base:100000}]"
)


def prepared(root: Path, name: str, tokenizer: Path | None = None) -> Path:
    """A small prepared data set."""
    text = root / name
    text.mkdir()
    rows = [
        {"text": "".join(f"{name} {i * j % 97} of {i}\n" for j in range(60 if i % 4 else 200))}
        for i in range(14)
    ]
    (text / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = [key for key in SMALL if key.startswith(("data.", "tokenizer."))]
    given = ["tokenizer.vocab_size=280" if tokenizer is None else f"tokenizer.path={tokenizer}"]
    files = [f"data.files={text}/*.jsonl", f"data.root={root}/prepared"]
    settings = composed(*small, *files, *given)
    return prepare(settings.data, settings.tokenizer, progress=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("mixture")
    web = prepared(root, "web")
    return {
        "web": web,
        "code": prepared(root, "code", web / "tokenizer.model"),
        "alien": prepared(root, "alien"),
    }


def mixed(folders: dict[str, Path], web: float = 3, code: float = 1, other: str = "code") -> str:
    sources = (
        f"web:{{path:{folders['web']},weight:{web}}},code:{{path:{folders[other]},weight:{code}}}"
    )
    return f"data.sources={{{sources}}}"


@pytest.fixture
def mixture(command, folders, tmp_path, monkeypatch, capsys):
    """Runs train.py on the mixture."""

    def run(*overrides, sources=None):
        given = [*SMALL, f"run.root={tmp_path}", "data=mixture", sources or mixed(folders)]
        monkeypatch.setattr(sys, "argv", ["train.py", *given, *overrides])
        try:
            train_command.main()
            code = 0
        except SystemExit as exit:
            code = exit.code
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def test_a_run_in_stages_on_a_mixture_continues_from_any_stage(mixture, command, tmp_path, folders):
    options = ["trainer.tokens=3200", "data.by_length={bounds:[500],weights:[1,2]}", STAGES]
    options += ["trainer.keep_last=9", "data.seq_len=32", "model.mixers.softmax.rope_base=1000.0"]
    code, out, err = mixture("run.name=whole", *options)
    assert code == 0, err
    assert (
        "stage 1 from step 10 to 15: rows of 32 tokens, 128 tokens per step, rope base 5,000" in err
    )
    for part in ("training text of 20 steps", "500 and more", "100,000", "code 1"):
        assert part in out, part
    rows = [row for row in read(tmp_path / "whole" / "metrics.jsonl") if not is_validation(row)]
    assert [row["tokens"] for row in rows][9:12] == [1280, 1408, 1536]
    assert rows[-1]["tokens"] == 3200
    assert [(row["stage"], row["seq_len"]) for row in rows[8:16:2]] == [
        (0, 16),
        (1, 32),
        (1, 32),
        (1, 32),
    ]
    assert rows[14]["epochs_web"] == rows[9]["epochs_web"]  # stage 1 reads code alone

    columns = ("tokens", "grad_norm", "learning_rate", "epochs_web", "epochs_code", "stage")
    expected = losses(tmp_path / "whole", *columns)
    checkpoints = tmp_path / "whole" / "checkpoints"
    bases = {
        step: saved_settings(load(path), path).mixers["softmax"].rope_base
        for step in (5, 15, 20)
        for path in [checkpoints / f"step-{step:08d}.ckpt"]
    }
    assert bases == {5: 1000.0, 15: 5000.0, 20: 100000.0}
    for step in (10,):  # as if killed at the border of two stages, before another one
        copy = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "whole", copy)
        (copy / "checkpoints" / "latest").write_text(f"step-{step:08d}.ckpt\n")
        code, _, err = mixture(f"run.name=from-{step}", *options)
        assert code == 0, err
        assert losses(copy, *columns) == expected

    shown = inspected(f"root={tmp_path}", "run=whole", "step=15")  # of the stage with code alone
    assert {(row["source"], len(row["tokens"]), row["epoch"]) for row in shown} == {("code", 32, 1)}
    assert {row["bucket"] for row in shown} <= {"below 500", "500 and more"}

    code, out, _ = command(eval_command.main, "run=whole")
    assert code == 0
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    for name in ("val", "val_web", "val_code"):
        assert f"{summary[f'{name}_bits_per_byte']:.4f}" in out
    mean = 0.75 * summary["val_web_bits_per_byte"] + 0.25 * summary["val_code_bits_per_byte"]
    assert summary["val_bits_per_byte"] == pytest.approx(mean)
    validated = [row for row in read(tmp_path / "whole" / "metrics.jsonl") if is_validation(row)]
    for row in validated:
        mean = 0.75 * row["val_web_nats_per_token"] + 0.25 * row["val_code_nats_per_token"]
        assert row["val_nats_per_token"] == pytest.approx(mean, rel=1e-5)

    # The tracker gets what is saved: plain values, lists as lists.
    config = RunFolder(tmp_path / "whole").config()
    assert config == json.loads(json.dumps(config))
    assert [stage["until_tokens"] for stage in config["trainer"]["stages"]] == [1280, 1920, None]
    assert config["data"]["sources"]["code"] == {"path": str(folders["code"]), "weight": 1.0}


def test_other_data_is_refused_with_every_difference_unless_it_is_forced(
    mixture, folders, tmp_path
):
    copies = {name: shutil.copytree(folders[name], tmp_path / name) for name in ("web", "code")}
    run = ["run.name=kept", "trainer.tokens=128"]
    assert mixture(*run, sources=mixed(copies))[0] == 0
    code, _, err = mixture(*run, "data.seed=4", sources=mixed(copies, web=1))
    assert code == 1
    assert "data.seed: saved 0, given 4" in err
    assert "saved {'web': {'path'" not in err
    assert "data.sources.web.weight: saved 3.0, given 1.0" in err
    assert "add data.force=true" in err

    # The same settings, and other contents behind them.
    shutil.rmtree(copies["code"])
    shutil.copytree(folders["web"], copies["code"])
    code, _, err = mixture(*run, sources=mixed(copies))
    assert code == 1
    before, now = (read_index(folders[name]) for name in ("code", "web"))
    assert f"contents {before.fingerprint}, {before.train.tokens:,} training tokens" in err
    assert f"contents {now.fingerprint}, {now.train.tokens:,} training tokens" in err
    assert "source web" not in err
    assert "type data.force=true" in err
    code, _, err = mixture(*run, "data.seed=4", "data.force=true", sources=mixed(copies))
    assert code == 0, err
    assert "from step 1 on other data" in err
    record = json.loads((tmp_path / "kept" / "data.json").read_text())
    (replaced,) = record["replaced"]
    assert replaced["until_step"] == 1
    assert replaced["sources"]["code"]["fingerprint"] == before.fingerprint
    assert record["sources"]["code"]["fingerprint"] == now.fingerprint
    assert RunFolder(tmp_path / "kept").config()["data"]["seed"] == 4


def test_a_forced_tokenizer_is_named_too(folders, tmp_path):
    def sets(name):
        return {"": Prepared(folders[name], read_index(folders[name]))}

    bind(tmp_path, sets("web"))
    with pytest.raises(
        ValueError,
        match=r"tokenizer: saved sentencepiece \w+, given sentencepiece \w+\n  data set: saved",
    ):
        bind(tmp_path, sets("alien"))
    assert bound(tmp_path, {"data": {"dir": None}}) == sets("web")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.files=a/*.txt"], "data.files=a/*.txt and data.sources are both given"),
        (["data.sources.code.weight=null"], "web with a weight, code without; give all or none"),
        (["data.sources.web.weight=0", "data.sources.code.weight=0"], "every weight is 0"),
        (["data.sources.web.path=nowhere"], "data.sources.web.path=nowhere: nowhere is not a prep"),
        (["data.by_length={bounds:[9,5],weights:[1,1,1]}"], "bounds=[9, 5] do not increase"),
        (["data.by_length={bounds:[9],weights:[1,1,1]}"], "1 bounds make 2 buckets"),
        (["trainer.stages=[{weights:{wbe:1}}]"], "no source 'wbe' (did you mean 'web'?)"),
        (["trainer.stages=[{weights:{web:0}}]"], "trainer.stages.0.weights: every weight is 0"),
        (
            ["trainer.stages=[{rope_base:5000}]", "model.layers=gla"],
            "trainer.stages.0: rope_base=50",
        ),
        (
            ["trainer.stages=[{seq_len:65536,batch_tokens:65536}]", "trainer.tokens=65536"],
            "too few for one row of 65,536 tokens",
        ),
    ],
)
def test_mistakes_are_refused_before_a_run_is_made(folders, overrides, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        opened(composed(*SMALL, "data=mixture", mixed(folders), *overrides))


def opened(settings):
    """What train.py checks before it makes a run."""
    train_command.check_settings(settings)
    sets = prepared_sets(settings.data, settings.tokenizer)
    stages = stages_of(settings.trainer, settings.data.seq_len)
    return TrainRows(sets, weights_of(settings.data, sets), None, row_stages(stages), 0)


def test_sources_with_different_tokenizers_are_refused(mixture, folders, tmp_path):
    code, _, err = mixture("run.name=wrong", sources=mixed(folders, other="alien"))
    assert code == 1
    assert "data.sources.web" in err
    assert "data.sources.code" in err
    assert "different tokenizers" in err
    assert f"tokenizer.path={folders['web']}/tokenizer.model" in err
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=mixture", "data.sources.web.path=gone"], "data.sources.web.path=gone: gone is not"),
        (["data=prepared", "data.dir=gone"], "data.dir=gone: gone is not a prepared data set"),
        (["data.files=gone/*.txt"], "data.files=gone/*.txt matches no file"),
        (["tokenizer.path=gone"], "gone"),
    ],
)
def test_a_job_of_a_sweep_with_data_that_is_not_there_is_refused(overrides, message, tmp_path):
    given = [*SMALL, f"data.root={tmp_path}/prepared", f"run.root={tmp_path}"]
    train_command.check_job(composed(*given))
    with pytest.raises(ValueError, match=re.escape(message)):
        train_command.check_job(composed(*given, *overrides))
    assert not list(tmp_path.iterdir())


def test_one_data_set_under_two_names_is_told(folders, tmp_path, capsys):
    copy = Path(shutil.copytree(folders["web"], tmp_path / "copy"))
    opened(composed(*SMALL, "data=mixture", mixed(folders)))
    assert capsys.readouterr().err == ""
    opened(composed(*SMALL, "data=mixture", mixed(folders | {"code": copy})))
    told = capsys.readouterr().err
    assert told.startswith(f"warning: data.sources.web ({folders['web']}) and data.sources.code (")
    assert "are the same data" in told


def test_a_tokenizer_that_the_sources_do_not_have_is_refused(folders):
    path = "tokenizer.path={}/tokenizer.model".format
    opened(composed(*SMALL, "data=mixture", mixed(folders), path(folders["web"])))
    with pytest.raises(
        ValueError, match=r"^tokenizer\.path=.*: data\.sources\.web\.path=.* keeps it"
    ):
        opened(composed(*SMALL, "data=mixture", mixed(folders), path(folders["alien"])))


def test_every_source_is_verified(folders, tmp_path):
    broken = Path(shutil.copytree(folders["code"], tmp_path / "broken"))
    shard = broken / "train-00000.bin"
    shard.write_bytes(b"\x05\x00" + shard.read_bytes()[2:])
    given = [*SMALL, "data=mixture", mixed(folders | {"code": broken})]
    opened(composed(*given))
    with pytest.raises(ValueError, match=r"data\.sources\.code: .*train-00000\.bin: its contents"):
        opened(composed(*given, "data.verify=true"))


def test_what_is_read_again_is_said(folders):
    sets = {name: Prepared(folders[name], read_index(folders[name])) for name in ("web", "code")}
    rows = TrainRows(sets, {"web": 1.0, "code": 8.0}, None, [RowStage(None, 9, 32)], 0)
    steps = 2 * len(rows.splits["code", 32]) // 8
    twice, *more = repeats(rows, steps + 1)
    assert twice == "note: source code is read 2.0 times, in another order each time"
    assert not more
    five_times = repeats(rows, 5 * steps // 2 + 1)
    assert "warning: source code is read 5.0 times; beyond 4 times" in five_times[0]


def test_a_step_of_a_run_is_shown_row_by_row(command, trained):
    trained("seen")
    code, out, _ = command(inspect_command.main, "run=seen", "step=1", "rank=1", "world=2")
    assert code == 0
    assert "row 1 of 2, sample 3, epoch 1, window" in out
    assert "item" in out
    for wrong, message in (
        (["step=6"], "step=6: the run has steps 1 to 1"),
        (["row=9"], "row=9: rank 0 of 1 has rows 0 to 3"),
        (["data.seq_len=64"], "data.seq_len=64 with run=seen: a run has its own settings"),
    ):
        code, _, err = command(inspect_command.main, "run=seen", *wrong)
        assert code == 1
        assert message in err
        assert err.count("\n") == 1
