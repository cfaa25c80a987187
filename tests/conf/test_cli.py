"""Command-line overrides: what is refused before any work, and what the message names."""

import copy
import math
import shlex
import subprocess
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from conf.cli import check, hydra_main, override, rewrite_arguments, rewrite_overrides
from conf.schema import GenerateSettings, TrainSettings
from data.config import PrepareSettings
from tests.composing import composed


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.gate_norm_typo=3", ["model.gate_norm_typo=3", "no key", "layers", "d_model"]),
        ("+model.gate_norm_typo=3", ["model.gate_norm_typo=3", "no key"]),
        ("++model.gate_norm_typo=3", ["model.gate_norm_typo=3", "no key"]),
        ("model.d_modle=64", ["model.d_modle=64", "did you mean 'd_model'"]),
        ("modle=tiny", ["modle='tiny'", "did you mean 'model'"]),
        ("trainer.tokns=10", ["did you mean 'tokens'"]),
        ("model.d_model=wide", ["model.d_model='wide'", "integer"]),
        ("model.d_model=-8", ["model.d_model=-8", "greater than 0"]),
        ("model.d_model=2.5", ["model.d_model=2.5"]),
        ("model.tie_embeddings=3", ["model.tie_embeddings=3", "boolean"]),
        ("run.name=7", ["run.name=7", "string"]),
        (
            "model.mixers.gla.feature_map=eluu",
            ["model.mixers.gla.feature_map='eluu'", "identity, elu1, relu, squared_relu, silu"],
        ),
        (
            "model.mixers.gla.decay=glaa",
            ["model.mixers.gla.decay='glaa'", "none, retnet, retnet_lm"],
        ),
        ("model.mixers.gla.windw=3", ["model.mixers.gla.windw=3", "no key", "decay_rank"]),
        ("+model.mixers.gla.windw=3", ["model.mixers.gla.windw=3", "no key"]),
        ("+model.mixers.mine.kind=mamba", ["model.mixers.mine.kind='mamba'", "softmax", "linear"]),
        ("+model.mixers.mine.heads=2", ["model.mixers.mine.kind: missing"]),
        ("~model.d_model", ["model.d_model: missing"]),
        ("model.mixers.retnet.decay_rank=8", ["retnet", "decay_rank=8", "decay=gla"]),
        ("model.mixers.softmax.kv_heads=3", ["kv_heads=3", "heads=2", "1, 2"]),
        ("optimizer.kind=sgd", ["optimizer.kind='sgd'", "muon, adamw"]),
        ("run.init_from=", ["run.init_from='': empty", "=VALUE or run.init_from=null"]),
        ("data.root=", ["data.root='': empty; give it as data.root=VALUE"]),
        ("schedule.warmup=20", None),
        ("schedule.warmup=20%", None),
        ("schedule.warmup=120%", ["schedule.warmup", "'120%'", "tokens"]),
        ("schedule.warmup=fast", ["schedule.warmup", "'fast'"]),
        ("trainer.tokens=2e6", None),
        ("trainer.tokens=1e20", ["trainer.tokens=", "less than or equal to 9223372036854775807"]),
        ("trainer.minutes=inf", ["trainer.minutes=inf", "finite"]),
        ("trainer.minutes=nan", ["trainer.minutes=nan"]),
        ("model.d_model=1e18", ["model.d_model=", "less than or equal to 1048576"]),
        ("model.d_model=1e40", ["model.d_model=", "less than or equal to 1048576"]),
        ("model.norm_eps=1e-320", ["model.norm_eps=1e-320", "greater than or equal to 1e-12"]),
        ("model.init_std=1e308", ["model.init_std=1e+308", "less than or equal to 100"]),
        ("model.mixers.gla.decay_rank=1e12", ["decay_rank=", "less than or equal to 1048576"]),
        ("model.mixers.gla.conv_width=9e18", ["conv_width=", "less than or equal to 1024"]),
        ("model.mixers.gla.decay_temperature=1e300", ["decay_temperature=1e+300", "10000"]),
        ("model.mixers.gla.memory_length=[1e-300,1e300]", ["2 problems", "0.01", "1000000000"]),
        ("model.mixers.softmax.window=1e30", ["window=", "less than or equal to 2147483647"]),
        ("model.mixers.softmax.rope_base=1e-9", ["rope_base=1e-09", "greater than or equal to 1"]),
        ("optimizer.lr=1e308", ["optimizer.lr=1e+308", "less than or equal to 1000"]),
        ("optimizer.eps=1e-320", ["optimizer.eps=1e-320", "greater than or equal to 1e-30"]),
        ("optimizer.betas=[1,0.9]", ["optimizer.betas.0=1", "less than 1"]),
        ("optimizer.weight_decay=1e3", ["lr=0.003 times weight_decay=1000", "up to 333.3"]),
        ("tokenizer.character_coverage=0.5", ["character_coverage=0.5", "equal to 0.98"]),
        ("data.workers=1e3", ["data.workers=1000", "less than or equal to 256"]),
        ("tokenizer.vocab_size=1", ["tokenizer.vocab_size=1", "equal to 261"]),
        ("trainer.tokens=100", ["tokens=100", "batch_tokens=2048"]),
        ("model.mixers.gla.memory_length=[9]", ["memory_length=[9", "two numbers"]),
        ("model.mixers.gla.normalize=true", ["normalize=true", "identity", "elu1"]),
        ("model.mixers.linear.rope_base=1e4", ["normalize=true", "rope_base"]),
        (
            "model.mixers.gla.write=delta",
            ["qk_norm=false, beta_max=null", "use qk_norm=true with beta_max=1 or 2"],
        ),
        ("model.mixers.kda.qk_norm=false", ["qk_norm=false, beta_max=1", "at most 2"]),
        ("model.mixers.kda.beta_max=2", None),
        ("model.mixers.kda.beta_max=3", ["model.mixers.kda.beta_max=3", "1, 2"]),
        ("model.mixers.gla.beta_max=2", ["beta_max=2 is not read by write=additive"]),
        ("model.mixers.taylor.decay=gla", ["feature_map=taylor, decay=gla", "decay per channel"]),
        ("model.mixers.taylor.decay=mamba2", None),
        ("model.mixers.taylor.rope_base=1e4", None),
        ("model.mixers.performer.rope_base=1e4", None),
        ("model.mixers.hedgehog.decay=kda", None),
        ("model.mixers.hedgehog.normalize=false", ["normalize=false, qk_norm=false", "ratio"]),
        ("model.mixers.deltanet.feature_map=favor", None),
        ("model.mixers.gla.feature_map=silu", None),
        ("model.mixers.linear.feature_map=silu", ["normalize=true", "feature_map=silu"]),
        (
            "model.mixers.cosformer.rope_base=1e4",
            ["cosformer with rope_base", "rope_base=null"],
        ),
        ("model.mixers.gla.redraw_every=5", ["redraw_every=5 is not read by feature_map=identity"]),
        ("model.mixers.dpfp.max_length=5", ["max_length=5", "only by feature_map=cosformer"]),
        ("model.mixers.hgrn2.decay=mamba2", ["write=complement with decay=mamba2", "gla or kda"]),
        ("model.mixers.hgrn2.feature_map=dpfp", ["write=complement with feature_map=dpfp"]),
        ("model.mixers.hgrn2.feature_map=favor", ["write=complement with feature_map=favor"]),
        ("model.mixers.mamba2.decay=gla", ["write=timestep with decay=gla"]),
        ("model.mixers.mamba2.output_norm=false", ["norm_after_gate=true", "output_norm=false"]),
        ("model.mixers.mamba2.qk_heads=3", ["qk_heads=3 does not divide heads=4", "1, 2, 4"]),
        ("model.mixers.deltanet.normalize=true", ["normalize=true with write=delta"]),
        ("model.mixers.deltanet.memory_length=[4,64]", ["decay=none", "only by decay=gla or"]),
        ("data.sources=web", ["data.sources='web': it has parts", "data.sources.NAME.path=VALUE"]),
        ("data.sources=[web]", ["data.sources=['web']: it", "data.sources.NAME.path=VALUE"]),
        ("data.sources.web=x", ["data.sources.web='x': it", "data.sources.web.path=VALUE"]),
        ("data.by_length=[5]", ["data.by_length=[5]: it", "data.by_length.bounds=VALUE"]),
        ("trainer.stages=[5]", ["trainer.stages.0=5: it", "trainer.stages.0.until_tokens=VALUE"]),
        (
            "trainer.stages.0.seq_len=5",
            ["trainer.stages=", "not a list; give it as 'trainer.stages=["],
        ),
        ("data.by_length={bounds:5,weights:[1,1]}", ["data.by_length.bounds=5: not a list"]),
        ("run.name.x=5", ["run.name.x: run.name has no parts; give it as run.name=VALUE"]),
        ("data.sources.1.path=x", ["data.sources.1: names of sources begin with a letter"]),
        ("data.sources={}", ["data.sources is empty"]),
        ("data=mixture", ["data.sources: Missing", "give it as data.sources.NAME.path=VALUE"]),
        ("data=files", ["data.files: Missing", "give it as data.files=VALUE"]),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(override, named):
    if named is None:
        composed(override)
        return
    with pytest.raises(ValueError) as error:
        composed(override)
    for part in named:
        assert part in str(error.value)


EXTREMES = (math.nan, math.inf, -math.inf, 1e308, 10**400, 1e20, -1)


def test_extreme_numbers_are_refused_wherever_they_mean_nothing():
    taken = set()
    for config, schema in (("train", TrainSettings), ("generate", GenerateSettings)):
        values = composed(config=config, schema=schema).model_dump()
        for key in _leaves(values):
            if any(_passes(values, key, extreme, schema) for extreme in EXTREMES):
                taken.add(".".join(key))
    assert taken == {
        "trainer.minutes",  # as good as no limit
        "trainer.clip_grad_norm",
        "temperature",  # every token is as likely as any other
    }


def _leaves(values, *above):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, *above, name)
        else:
            yield (*above, name)


def _passes(values, key, value, schema):
    values = copy.deepcopy(values)
    section = values
    for name in key[:-1]:
        section = section[name]
    section[key[-1]] = value
    try:
        check(values, schema)
    except ValueError:
        return False
    return True


def test_all_mistakes_are_named_at_once():
    with pytest.raises(ValueError, match="3 problems") as error:
        composed("model.d_model=wide", "model.typo=1", "schedule.kind=wsdd")
    for key in ("model.d_model", "model.typo", "schedule.kind"):
        assert key in str(error.value)


def test_the_layer_pattern_needs_no_quotes():
    settings = composed("model.layers=(gla gla retnet softmax)*2")
    assert settings.model.layers == "(gla gla retnet softmax)*2"


def test_a_glob_and_a_path_with_brackets_reach_the_settings():
    assert composed("data.files=mytext/*.jsonl").data.files == "mytext/*.jsonl"
    assert composed("data.files=[a/*.txt,b/*.md]").data.files == ["a/*.txt", "b/*.md"]
    assert composed("data.files=my (old) text/*.txt").data.files == "my (old) text/*.txt"


@given(st.text(max_size=30))
def test_free_text_reaches_the_task_unchanged(text):
    (override,) = rewrite_overrides([f"prompt={text}"], ("prompt",))
    value = OverridesParser.create().parse_override(override.lstrip("+")).value()
    container = OmegaConf.create({})
    OmegaConf.update(container, "prompt", value)
    assert OmegaConf.to_container(container, resolve=True) == {"prompt": text}


@given(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(0, 1), st.text(), st.lists(st.text())
    )
    | st.dictionaries(st.sampled_from(["a", "b_c"]), st.none() | st.booleans() | st.text())
)
def test_a_suggested_override_gives_the_value_when_it_is_typed(value):
    (typed,) = shlex.split(override("data.files", value))
    (rewritten,) = rewrite_overrides([typed])
    container = OmegaConf.create({})
    read = OverridesParser.create().parse_override(rewritten.lstrip("+")).value()
    OmegaConf.update(container, "x", read)
    assert OmegaConf.to_container(container, resolve=True) == {"x": value}


def test_a_simple_suggestion_has_no_needless_quotes():
    assert override("data.files", "mytext/a-b_1") == "data.files=mytext/a-b_1"
    assert override("data.files", ["a/b", "c"]) == "'data.files=[a/b,c]'"
    assert override("data.dir", None) == "data.dir=null"


@pytest.mark.parametrize(
    "typed",
    [
        ["-m", "model=tiny", "seed=1,2", "~model.x"],
        ["model=tiny", "seed=1,2", "~model.x", "-m"],
        ["model=tiny", "-m", "seed=1,2", "~model.x"],
    ],
)
def test_flags_may_stand_anywhere(typed):
    assert [a for a in rewrite_arguments(typed) if not a.startswith("hydra")] == [
        "-m",
        "model=tiny",
        "++seed=1,2",
        "~model.x",
    ]
    assert rewrite_arguments(["--cfg", "job", "seed=1"])[:2] == ["--cfg", "job"]
    assert rewrite_arguments(["seed=1", "--cfg", "job"])[:2] == ["--cfg", "job"]


def test_a_sweep_over_layer_patterns_has_a_job_for_each():
    (override,) = rewrite_overrides(["model.layers=(gla)*2,softmax"], sweeping=True)
    assert override == "++model.layers='(gla)*2','softmax'"


@pytest.mark.parametrize(
    "override",
    [
        "optimizer=adam",
        "trainer=5",
        "experiment=hybrid_60",
        "logger=null",
        "mixer@model.mixers.gla=null",
    ],
)
def test_a_choice_that_does_not_exist_is_named_with_the_others(override):
    with pytest.raises(ValueError, match=f"{override}: not one of .*"):
        rewrite_overrides([override])
    assert rewrite_overrides(["experiment=null", "hydra/launcher=x"]) == ["hydra/launcher=x"]


@pytest.mark.parametrize("key", ["data.sources.a b.path", "data.sources.ünï.path", "data..x"])
def test_what_can_be_no_key_is_told_what_a_key_is(key):
    with pytest.raises(ValueError, match=f"'{key}' is no key; keys are names of letters"):
        rewrite_arguments([f"{key}=x"])
    with pytest.raises(ValueError, match=f"'{key}' is no key"):
        rewrite_arguments([f"{key}=1,2", "-m"])


@pytest.mark.parametrize("typed", ["b.txt", "a/b c.txt", "step", "+step", ""])
def test_what_is_no_setting_is_told_how_settings_are_given(typed):
    with pytest.raises(
        ValueError, match=r"not KEY=VALUE.* data\.files='\[a\.txt,b\.txt\]'"
    ) as error:
        rewrite_arguments(["data.files=a.txt", typed])
    assert str(error.value).startswith(shlex.quote(typed))


def test_an_interrupt_while_the_command_starts_is_one_message(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("conf.cli.rewrite_arguments", interrupted)
    with pytest.raises(SystemExit) as left:
        hydra_main("prepare", PrepareSettings)(lambda settings: None)()
    assert left.value.code == 130
    assert capsys.readouterr().err.startswith("interrupted; the same command goes on")


def test_another_copy_of_a_preset_is_added_under_a_new_name():
    settings = composed(
        "+mixer@model.mixers.fast=gla",
        "model.mixers.fast.feature_map=elu1",
        "model.layers=fast gla",
    )
    assert settings.model.mixers["fast"].feature_map == "elu1"
    assert settings.model.mixers["gla"].feature_map == "identity"


def test_a_mistake_ends_the_command_with_one_message():
    command = [sys.executable, "train.py", "model.mixers.gla.feature_map=eluu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: model.mixers.gla.feature_map='eluu'")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("only_prints", [True, False])
def test_a_closed_pipe_is_told_only_by_commands_that_do_more_than_print(only_prints):
    script = (
        "import itertools, sys\n"
        "from omegaconf import OmegaConf\n"
        "from conf.cli import _run\n"
        "from conf.settings import Settings\n"
        "task = lambda settings: [print(i, 'x' * 100) for i in itertools.count()]\n"
        f"_run(task, OmegaConf.create({{}}), Settings, {only_prints})\n"
    )
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", script], **given)
    assert process.stdout.readline().startswith("0 x")
    process.stdout.close()
    told = process.stderr.read()
    assert process.wait(60) == 1
    end = "error: ended, as nobody reads standard output any more\n"
    assert told == ("" if only_prints else end)
