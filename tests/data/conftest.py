"""Fixtures of the data tests: default settings, small corpora, hand-made streams."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from data.config import DataConfig, TokenizerConfig
from data.index import (
    FORMAT_VERSION,
    Index,
    Rejected,
    ValidationIndex,
    contents_fingerprint,
    token_dtype,
)
from data.tokenizer import Tokenizer
from data.writer import SplitWriter

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(autouse=True)
def histogram(request, monkeypatch) -> None:
    """Drawing takes longer than all else about a small data set: only where it is looked at."""
    if "drawn" not in request.keywords:
        monkeypatch.setattr("data.merge.draw_lengths", lambda folder, index, path: path.touch())


@pytest.fixture
def data_config(tmp_path: Path) -> Callable[..., DataConfig]:
    """Defaults of conf/data/stdlib.yaml, written under tmp_path, with changes."""
    values = yaml.safe_load((CONF / "data/stdlib.yaml").read_text())
    values["root"] = str(tmp_path / "prepared")
    return lambda **changes: DataConfig(**(values | changes))


@pytest.fixture(scope="session")
def tokenizer_config() -> Callable[..., TokenizerConfig]:
    """Defaults of conf/tokenizer/sentencepiece_2k.yaml with changes."""
    values = yaml.safe_load((CONF / "tokenizer/sentencepiece_2k.yaml").read_text())
    return lambda **changes: TokenizerConfig(**(values | changes))


@pytest.fixture(scope="session")
def code_text() -> str:
    """About 250 kB of Python source."""
    tabs = "all:\n\tcc -o x x.c\n\t\techo done\n" * 50
    return (
        tabs
        + "".join(Path(name).read_text() for name in (random.__file__, yaml.__file__))
        + "".join(path.read_text() for path in sorted(Path(hashlib.__file__).parent.glob("a*.py")))
    )


@pytest.fixture(scope="session")
def tokenizer(tokenizer_config, code_text) -> Tokenizer:
    """The default model type with a small vocabulary."""
    blocks = [code_text[i : i + 4000] for i in range(0, len(code_text), 4000)]
    return Tokenizer.train(blocks, tokenizer_config(vocab_size=900))


@pytest.fixture(scope="session")
def unigram_tokenizer(tokenizer_config, code_text) -> Tokenizer:
    """The other model type."""
    config = tokenizer_config(vocab_size=600, model_type="unigram")
    return Tokenizer.train([code_text[i : i + 4000] for i in range(0, 60_000, 4000)], config)


@pytest.fixture(scope="session", params=["tokenizer", "unigram_tokenizer"])
def any_tokenizer(request) -> Tokenizer:
    """Each model type."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Forty files of about 2 kB, each different."""
    folder = tmp_path / "mytext"
    folder.mkdir()
    source = random.Random(7)
    words = ["alpha", "beta", "def f(x):", "    return", "δέλτα", "</s>", "1234", "\t", "\n"]
    for number in range(40):
        text = " ".join(source.choice(words) for _ in range(400))
        (folder / f"{number:02d}.txt").write_text(f"{number} {text}", newline="")
    return folder


@pytest.fixture
def stream(tmp_path: Path) -> Callable[..., Path]:
    """Writes a prepared data set whose training (and validation) documents are these token ids."""

    def write(documents: list[list[int]], name: str = "stream", **options: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        vocab_size = options.get("vocab_size", 100)
        splits = []
        for split in ("train", "validation"):
            writer = SplitWriter(folder, split, vocab_size, options.get("shard_tokens", 1000))
            for ids in documents:
                writer.add(ids)
            splits.append(writer.close(text_bytes=1))
        write_index(folder, vocab_size, *splits, pad_id=options.get("pad_id", 3))
        return folder

    return write


@pytest.fixture
def completed() -> Callable[..., Index]:
    """Writes the index and a dummy tokenizer of a hand-made folder."""
    return write_index


def write_index(folder: Path, vocab_size: int, train, validation, pad_id: int = 3) -> Index:
    """Completes a hand-made prepared folder."""
    (folder / "tokenizer.model").write_bytes(b"none")
    fingerprint = hashlib.sha256(b"none").hexdigest()[:16]
    index = Index(
        format_version=FORMAT_VERSION,
        dtype=token_dtype(vocab_size).name,
        vocab_size=vocab_size,
        bos_id=1,
        eos_id=2,
        pad_id=pad_id,
        tokenizer_fingerprint=fingerprint,
        fingerprint=contents_fingerprint(fingerprint, train, validation),
        source={"kind": "test"},
        notes=[],
        rejected=Rejected(counts={}, examples={}),
        longest=[],
        train=train,
        validation=ValidationIndex(
            **validation.model_dump(), gzip_bytes=1, unigram_nats_per_token=1.0
        ),
    )
    (folder / "index.json").write_text(index.model_dump_json())
    return index
