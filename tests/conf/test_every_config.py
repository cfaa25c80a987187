"""Every YAML file of every group composes, is valid, builds what it describes, and is read."""

import ast
import typing

import pytest
import torch
from pydantic import BaseModel

from conf.cli import CONF, rewrite_overrides
from conf.schema import EvalSettings, GenerateSettings, InspectSettings, TrainSettings
from data.config import PrepareSettings
from model.network import LanguageModel
from model.training.optimizers import build_optimizer
from model.training.schedules import check_schedule, learning_rate_factor
from model.training.stages import stages_of
from tests.composing import FREE_TEXT, composed, composed_by_hydra, composed_values

CHOICES = sorted(
    (path.parent.name, path.stem) for path in CONF.glob("*/*.yaml") if path.parent.name != "mixer"
)
NEEDED = {  # what a file leaves to the user on purpose
    ("data", "files"): ["data.files=text/*.txt"],
    ("data", "hub"): ["data.hub=someone/something"],
    ("data", "prepared"): ["data.dir=prepared/something"],
    ("data", "mixture"): ["data.sources={web:{path:prepared/web}}"],
    ("tokenizer", "hf_json"): ["tokenizer.path=gpt2/tokenizer.json"],
}
COMMANDS = {
    "train": TrainSettings,
    "generate": GenerateSettings,
    "eval": EvalSettings,
    "prepare": PrepareSettings,
    "inspect": InspectSettings,
}


def instantiate(settings: TrainSettings) -> LanguageModel:
    """Builds what `train.py` would, without memory for the weights."""
    with torch.device("meta"):
        model = LanguageModel(settings.model, 32_768)
        build_optimizer(settings.optimizer, model, "32-true")
    stages_of(settings.trainer, settings.data.seq_len)
    total = settings.trainer.tokens
    check_schedule(settings.schedule, total)
    assert 0 <= learning_rate_factor(settings.schedule, total, total) < 1
    return model


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_of_every_group_can_be_built(group, choice):
    instantiate(composed(f"{group}={choice}", *NEEDED.get((group, choice), [])))


@pytest.mark.parametrize("preset", sorted(path.stem for path in (CONF / "mixer").glob("*.yaml")))
def test_every_mixer_preset_can_be_built_and_used(preset):
    model = instantiate(composed(f"model.layers={preset}"))
    assert [block.name for block in model.blocks] == [preset]


@pytest.mark.parametrize(
    ("choice", "millions"), [("tiny", 1.2), ("60m", 60), ("340m", 340), ("1b3", 1300)]
)
def test_models_have_the_size_in_their_name(choice, millions):
    settings = composed(f"model={choice}").model
    with torch.device("meta"):
        model = LanguageModel(settings, 2048 if choice == "tiny" else 32_768)
    assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=0.1)
    kinds = {type(settings.mixers[name]).__name__ for b in model.blocks for name in [b.name]}
    assert len(kinds) == 2, "the models are hybrids"


def test_values_set_after_composing_are_those_that_hydra_sets():
    typed = [
        "model=60m",
        "model.layers=(gla softmax)*2",
        "model.mixers.gla.memory_length=[4,64]",
        "+mixer@model.mixers.fast=gla",
        "model.mixers.fast.heads=8",
        "+model.mixers.mine.kind=linear",
        "data.files=a (1).txt",
        "trainer.minutes=null",
    ]
    by_hydra = composed_by_hydra("train", *rewrite_overrides(typed, FREE_TEXT))
    assert composed_values("train", *typed) == by_hydra
    assert by_hydra.model.mixers.fast.heads == 8


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_valid_configuration(command):
    composed(config=command, schema=COMMANDS[command])


def test_every_yaml_file_is_a_command_or_a_choice():
    roots = {path.stem for path in CONF.glob("*.yaml")}
    assert roots == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_is_read_by_some_code(command):
    unread = sorted(_fields(COMMANDS[command]) - _attributes_in_code())
    assert not unread, f"no code reads {unread}"


def _fields(model: type[BaseModel]) -> set[str]:
    names: set[str] = set()
    for name, field in model.model_fields.items():
        if name != "kind":  # the tag of a union: pydantic reads it
            names.add(name)
        for section in _models_in(field.annotation):
            names |= _fields(section)
    return names


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in typing.get_args(annotation) for found in _models_in(part)]


def _attributes_in_code() -> set[str]:
    """Names read as attributes anywhere but in the classes that declare the settings."""
    root = CONF.parent
    files = [*root.glob("*.py"), *root.glob("model/**/*.py"), *root.glob("data/**/*.py")]
    names = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
    return names
