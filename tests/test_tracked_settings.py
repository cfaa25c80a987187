"""What Weights & Biases gets of a run: the settings of config.yaml as plain values, no secrets."""

import json
import time
from pathlib import Path

import pytest
import yaml

import train as train_command
from model.training.wandb_file import records
from tests.commands import called, small_run

SECRETS = {
    "WANDB_API_KEY": "0123456789" * 4,
    "HF_TOKEN": "hf_0a1b2c3d4e5f6071",
    "MY_PASSWORD": "x" * 20,
}


def offline_records(run: Path, seconds: float = 30) -> list:
    """What is in the file of an offline run; W&B's process closes it a little after the run."""
    from wandb.proto import wandb_internal_pb2

    (file,) = run.glob("wandb/offline-run-*/run-*.wandb")
    end = time.monotonic() + seconds
    while True:
        found = [wandb_internal_pb2.Record.FromString(data) for data in records(file.read_bytes())]
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        assert time.monotonic() < end, "the file is not complete"
        time.sleep(0.1)


@pytest.mark.long
def test_the_tracker_has_the_saved_settings_as_plain_values_and_no_secrets(
    text, tmp_path, monkeypatch
):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    given = ["logger=wandb", "logger.mode=offline", "logger.tags=[small,first]"]
    given += ["run.name=lr-${optimizer.lr}", "optimizer.lr=0.25"]
    given += ["trainer.tokens=256", "trainer.stages=[{until_tokens:128,seq_len:16},{}]"]
    code, _, err = called(train_command.main, *small_run(text, tmp_path), *given)
    assert code == 0, err
    run = tmp_path / "lr-0.25"

    found = offline_records(run)
    sent = {}
    for record in found:
        for part in (record.run.config, record.config):
            sent |= {item.key: json.loads(item.value_json) for item in part.update}
    del sent["_wandb"]  # W&B's own
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert sent == saved
    assert sent["run"]["name"] == "lr-0.25"
    assert sent["logger"]["tags"] == ["small", "first"]
    assert [stage["until_tokens"] for stage in sent["trainer"]["stages"]] == [128, None]
    assert sent["data"]["root"] == f"{text}/prepared"
    assert "${" not in json.dumps(sent)

    written = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    written += [record.SerializeToString() for record in found]
    assert len(written) > 30
    for secret in SECRETS.values():
        assert not any(secret.encode() in content for content in written)


def test_a_secret_among_the_settings_is_refused_before_it_is_written(text, tmp_path, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    secret = SECRETS["HF_TOKEN"]
    given = [*small_run(text, tmp_path), "run.name=bad", f"logger.project={secret}", "logger=wandb"]
    code, out, err = called(train_command.main, *given)
    assert code == 1
    assert "logger.project holds the value of $HF_TOKEN" in err
    assert secret not in out + err
    assert not (tmp_path / "bad").exists()
