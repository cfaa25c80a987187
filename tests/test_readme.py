"""README's lists follow the configuration."""

import re
import shlex

import yaml

from conf.cli import CONF
from model.decays import DECAYS
from model.feature_maps import FEATURE_MAPS
from tests.composing import composed

README = (CONF.parent / "README.md").read_text()


def test_the_table_of_groups_names_every_choice():
    rows = dict(re.findall(r"^\| `(\w+)[^`]*` \| (.*) \|$", README, flags=re.MULTILINE))
    for folder in sorted(path for path in CONF.iterdir() if path.is_dir()):
        choices = {path.stem for path in folder.glob("*.yaml")}
        if choices:
            assert set(re.findall(r"`(\w+)`", rows[folder.name])) == choices, folder.name


def test_every_file_that_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (CONF.parent / target).exists(), target


def test_every_mixer_preset_has_a_row():
    for path in (CONF / "mixer").glob("*.yaml"):
        assert f"| `{path.stem}` |" in README


def test_every_decay_and_feature_map_is_explained():
    mathematics = (CONF.parent / "docs/mathematics.md").read_text()
    for name in (*DECAYS, *FEATURE_MAPS):
        assert f"`{name}`" in README, name
        assert f"`{name}`" in mathematics, name


def test_every_published_mix_has_a_row():
    for path in (CONF / "experiment").glob("*_like.yaml"):
        layers = yaml.safe_load(path.read_text())["model"]["layers"]
        assert f"| `{path.stem}` | `{layers}`" in README


def test_the_second_version_of_a_mixer_differs_only_in_what_it_is_for():
    command = re.search(
        r"python train\.py (\+mixer@model\.mixers\.fast.*?)\n```", README, re.DOTALL
    )
    mixers = composed(*shlex.split(command[1].replace("\\\n", " "))).model.mixers
    assert mixers["fast"].memory_length == [4, 64]
    assert mixers["fast"].model_copy(update={"memory_length": None}) == mixers["gla"]
