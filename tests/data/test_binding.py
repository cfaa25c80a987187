"""Which data set a run belongs to, and the way back when that is gone."""

import json
import shlex
import shutil

import pytest

from data.binding import bind, bound, prepare_command
from data.config import PrepareSettings
from data.index import read_index
from data.prepare import prepare
from data.sets import Prepared
from tests.composing import composed


@pytest.fixture
def run(tmp_path, data_config, tokenizer_config, text_folder):
    """(folder of a run, its configuration, its prepared data set)"""
    data = data_config(files=f"{text_folder}/*.txt", seq_len=64, validation_bytes=5000)
    tokenizer = tokenizer_config(vocab_size=330)
    folder = prepare(data, tokenizer, progress=False)
    run = tmp_path / "run"
    run.mkdir()
    bind(run, {"": Prepared(folder, read_index(folder))})
    return run, {"data": data.model_dump(), "tokenizer": tokenizer.model_dump()}, folder


def typed(command):
    """The settings that a command line of `python -m data.prepare` gives."""
    program, *overrides = shlex.split(command.removeprefix("python -m "))
    assert program == "data.prepare"
    settings = composed(*overrides, config="prepare", schema=PrepareSettings)
    assert (settings.shard, settings.merge) == (None, False)
    return settings


def sections(settings):
    return settings.model_dump(include={"data", "tokenizer"})


def test_a_data_set_that_is_gone_is_named_with_the_command_that_prepares_it_again(run):
    path, config, folder = run
    assert bound(path, config) == {"": Prepared(folder, read_index(folder))}
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=f"data set {folder} of run 'run' .* is gone") as error:
        bound(path, config)
    assert "..." not in str(error.value)
    settings = typed(str(error.value).splitlines()[-1].strip())
    assert sections(settings) == config
    assert prepare(settings.data, settings.tokenizer, progress=False) == folder
    assert bound(path, config) == {"": Prepared(folder, read_index(folder))}


def test_a_data_set_with_the_same_contents_and_another_name_is_found(run):
    path, config, folder = run
    index = read_index(folder)
    moved = folder.rename(folder.with_name("another"))
    assert bound(path, config) == {"": Prepared(moved, index)}
    contents = json.loads((moved / "index.json").read_text())
    (moved / "index.json").write_text(json.dumps(contents | {"fingerprint": "0"}))
    with pytest.raises(ValueError, match=r"is gone, and none in .* has the same contents"):
        bound(path, config)


def test_a_data_set_that_was_given_as_a_folder_is_to_be_put_back(run):
    path, config, folder = run
    config["data"]["dir"] = str(folder)
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=f"Put it back: .* data.dir={folder}$"):
        bound(path, config)


def test_the_command_names_what_differs_from_the_defaults_and_nothing_else():
    settings = composed("data.files=[my texts/*.md,b/?.txt]", "tokenizer=sentencepiece_32k")
    config = {"data": settings.data.model_dump(), "tokenizer": settings.tokenizer.model_dump()}
    command = prepare_command(config)
    assert sections(typed(command)) == config
    assert "data.seed" not in command
    defaults = composed(config="prepare", schema=PrepareSettings).model_dump()
    assert prepare_command(defaults) == "python -m data.prepare"
