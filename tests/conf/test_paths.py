"""Errors of the operating system name the setting that the path came from."""

import errno

import pytest

from conf.paths import explain, located
from conf.schema import EvalSettings, GenerateSettings, TrainSettings
from data.config import PrepareSettings
from tests.composing import composed


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return composed("data.files=[a/*.txt,b/**/*.md]", "tokenizer.path=models/t.model")


@pytest.mark.parametrize(
    ("path", "key", "advice"),
    [
        ("runs/x/config.yaml", "run.root=runs", "written: run.root=FOLDER"),
        ("runs", "run.root=runs", "written: run.root=FOLDER"),
        ("prepared/.partial-x/spool", "data.root=prepared", "written: data.root=FOLDER"),
        ("a/one.txt", "data.files=a/*.txt", "those that can be read: data.files=FILES"),
        ("b/c/d/e.md", "data.files=b/**/*.md", "those that can be read: data.files=FILES"),
        ("models", "tokenizer.path=models/t.model", "read: tokenizer.path=FILE"),
    ],
)
def test_the_setting_is_the_one_that_leads_to_the_path(settings, tmp_path, path, key, advice):
    for given in (path, f"{tmp_path}/{path}"):
        error = PermissionError(errno.EACCES, "Permission denied", given)
        message = explain(error, settings)
        assert message.startswith(f"{key}: {given}: Permission denied. Give ")
        assert message.endswith(advice)


def test_several_settings_behind_one_folder_are_all_named(settings, tmp_path):
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path))
    message = explain(error, settings)
    for key in ("run.root=runs", "data.root=prepared", "data.files=a/*.txt"):
        assert key in message


def test_a_path_from_elsewhere_is_given_without_a_setting(settings):
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", "/usr/lib/libx.so")
    assert explain(error, settings) == "/usr/lib/libx.so: No such file or directory"
    assert explain(OSError("the cable is loose"), settings) == "the cable is loose"


def test_a_full_disk_asks_for_space_first(settings):
    error = OSError(errno.ENOSPC, "No space left on device", "prepared/x")
    assert "device. Free space there, or give one that" in explain(error, settings)


@pytest.mark.parametrize("command", ["eval", "generate"])
def test_other_commands_have_their_own_settings(command):
    schema = {"eval": EvalSettings, "generate": GenerateSettings}[command]
    settings = composed("root=elsewhere", config=command, schema=schema)
    error = PermissionError(errno.EACCES, "Permission denied", "elsewhere/x/config.yaml")
    assert explain(error, settings).startswith("root=elsewhere: elsewhere/x/config.yaml: Perm")


def test_errors_without_a_name_get_the_place_and_others_stay_as_they_are(tmp_path):
    for code in (errno.ENOSPC, errno.EIO):
        with pytest.raises(OSError) as error, located(tmp_path):
            raise OSError(code, "told by write()")
        assert (error.value.errno, error.value.filename) == (code, str(tmp_path))
    for other in (OSError("no number"), OSError(errno.ENOSPC, "full", "named"), ConnectionError(1)):
        with pytest.raises(OSError) as error, located(tmp_path):
            raise other
        assert error.value is other


@pytest.mark.parametrize("schema", [TrainSettings, EvalSettings, GenerateSettings, PrepareSettings])
def test_every_setting_that_is_a_path_is_known(schema):
    """By the names that such settings have."""
    from conf.paths import _ADVICE

    def keys(model, prefix=""):
        for name, field in model.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                yield from keys(field.annotation, f"{prefix}{name}.")
            elif name in ("root", "dir", "files", "hub", "path", "init_from"):
                yield f"{prefix}{name}"

    assert set(keys(schema)) <= set(_ADVICE)
    assert len(list(keys(schema))) > 0
