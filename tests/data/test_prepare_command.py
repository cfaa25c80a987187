"""`python -m data.prepare`: one good run, one with a user's mistake; the shipped settings."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from data.config import DataConfig, TokenizerConfig
from data.index import read_index
from data.tokenizer import Tokenizer
from tests.data.test_prepare import documents_of, stream_of

ROOT = Path(__file__).parents[2]


def command(*overrides):
    return subprocess.run(
        [sys.executable, "-m", "data.prepare", *overrides], cwd=ROOT, capture_output=True, text=True
    )


def test_the_command_prepares_files_and_prints_a_summary(text_folder, tmp_path):
    before = set(ROOT.iterdir())
    done = command(
        f"data.files=[{text_folder}/0*.txt,{text_folder}/1*.txt]",
        f"data.root={tmp_path}/out",
        "data.seq_len=64",
        "data.validation_bytes=4e3",
        "tokenizer.vocab_size=330",
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    assert f"written to  {folder}" in done.stdout
    assert "gzip -9" in done.stdout
    assert set(ROOT.iterdir()) == before


SPECIAL = "a\tb  c\n\n\u00a0e\u0301 😀 ▁x \ue000 </s> <s> <pad> <unk> <0x0A>\r\n"


def test_text_with_special_strings_goes_through_the_command_and_back_exactly(text_folder, tmp_path):
    for number in range(10):
        (text_folder / f"special{number}.txt").write_text(f"{number} {SPECIAL}" * 20, newline="")
    given = [f"data.files={text_folder}/*.txt", f"data.root={tmp_path}/out", "data.seq_len=64"]
    done = command(*given, "data.validation_bytes=4e3", "tokenizer.vocab_size=350")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    found = documents_of(folder, "train") + documents_of(folder, "validation")
    texts = [path.read_bytes().decode() for path in text_folder.iterdir()]
    assert sorted(found) == sorted(texts)
    index = read_index(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    for split in ("train", "validation"):
        ids, starts = stream_of(folder, split)
        assert (ids == index.eos_id).sum() == (ids == index.bos_id).sum() == len(starts)
        assert (ids == index.pad_id).sum() == 0
        decoder = tokenizer.stream()
        pieces = [*(decoder.push(id) for id in ids.tolist()), decoder.flush()]
        assert "".join(pieces) == "".join(documents_of(folder, split))
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_mistake_ends_the_command_with_one_error(tmp_path):
    done = command("data=files", f"data.files={tmp_path}/*.jsonl", f"data.root={tmp_path}/out")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: data.files={tmp_path}/*.jsonl matches no file")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


REQUIRED = {
    "files": "a.txt",
    "hub": "owner/name",
    "prepared": "prepared/x",
    "mixture": {"web": {"path": "prepared/x", "weight": 1.0}},
    "stdlib": None,
}


@pytest.mark.parametrize("path", sorted((ROOT / "conf/data").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_data_settings_are_complete(path):
    values = yaml.safe_load(path.read_text())
    assert list(values) == list(DataConfig.model_fields)
    missing = [key for key, value in values.items() if value == "???"]
    named = {"prepared": "dir", "mixture": "sources"}.get(path.stem, path.stem)
    assert missing == [named] * (path.stem != "stdlib")
    DataConfig(**(values | dict.fromkeys(missing, REQUIRED[path.stem])))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "conf/tokenizer").glob("*.yaml")), ids=lambda p: p.stem
)
def test_shipped_tokenizer_settings_are_complete(path):
    values = yaml.safe_load(path.read_text())
    assert list(values) == list(TokenizerConfig.model_fields)
    TokenizerConfig(**values)


def test_two_sources_are_refused(data_config):
    with pytest.raises(ValueError, match=r"both given.*data\.files=null or data\.hub=null"):
        data_config(files="a.txt", hub="owner/name")
    with pytest.raises(ValueError, match="empty list"):
        data_config(files=[])
