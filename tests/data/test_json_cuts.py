"""Cutting long documents: the tokens of a tokenizer.json are those of the whole text."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm import tqdm

from data.encode import Encoder, tasks, write_split
from data.tokenizer import Tokenizer
from tests.data.json_files import END, KINDS, split_by, write
from tests.data.test_encode import encoded, expected, write_spool

KIND_NAMES = list(KINDS)


@pytest.fixture(scope="module")
def folder_of_kind(code_text, tmp_path_factory):
    """Gives, by the name of a kind, a folder with its saved tokenizer."""
    made = {}

    def of(kind: str) -> Path:
        if kind not in made:
            make, roles = KINDS[kind]
            made[kind] = tmp_path_factory.mktemp(kind)
            Tokenizer.load(write(make(code_text), made[kind] / "given", roles)).save(made[kind])
        return made[kind]

    return of


def assert_whole(folder: Path, texts: list[str], task_bytes: int) -> int:
    """Checks that tasks give the tokens of whole texts; returns how many cuts are unsafe."""
    tokenizer = Tokenizer.load(folder)
    ids, starts, cuts = encoded(folder, write_spool(folder, texts), task_bytes)
    assert tokenizer.decode(ids) == "".join(texts)
    if not cuts:
        assert (ids, starts) == expected(tokenizer, texts)
    return cuts


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_real_text_is_cut_without_changing_a_token(folder_of_kind, code_text, kind):
    texts = [code_text[:150_000], "short\n", code_text[150_000:200_000]]
    assert assert_whole(folder_of_kind(kind), texts, 20_000) == 0


def standard_library(least: int) -> str:
    """So many characters of source text."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)
    assert len(text) >= least
    return text[:least]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.long] * (k != "llama3")) for k in KIND_NAMES]
)
def test_a_document_of_megabytes_has_the_tokens_of_the_whole(folder_of_kind, kind):
    assert assert_whole(folder_of_kind(kind), [standard_library(2_200_000)], 1 << 20) == 0


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_random_characters_are_cut_without_changing_a_token(folder_of_kind, kind):
    source = random.Random(1)
    codes = (
        source.randrange(source.choice([0x80, 0x250, 0x3000, 0x110000])) for _ in range(20_000)
    )
    text = "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    assert assert_whole(folder_of_kind(kind), [text], 4000) == 0


PIECES = (
    *("don't", "'ll", "'", "\n", "  ", "\t", "!?", "12", "345", ".", "a", "\r\n", "é", "\u2581"),
    *("<think>", END, "</s>", "<0x0A>", "\ue000", "日本", "😀", "   ", "\n\n", "se"),
)
awkward = st.lists(st.sampled_from(PIECES), max_size=400).map("".join)


@pytest.mark.parametrize("kind", KIND_NAMES)
@settings(max_examples=15, deadline=None)
@given(text=awkward, task_bytes=st.integers(100, 700))
def test_awkward_texts_are_cut_safely_or_that_is_counted(folder_of_kind, kind, text, task_bytes):
    assert_whole(folder_of_kind(kind), [text], task_bytes)


def test_a_border_that_depends_on_where_counting_began_is_none(folder_of_kind):
    """Digits are split in threes from the start of the number: no place in it is safe."""
    tokenizer = Tokenizer.load(folder_of_kind("llama3"))
    number = "1234567" * 100
    text = f"x = {number} + 1"
    assert tokenizer.find_cut(text, 4 + 1, 4 + len(number)) is None
    place = tokenizer.find_cut(text, 4 + 1, len(text))
    assert place == 4 + len(number)
    assert tokenizer.encode(text[:place]) + tokenizer.encode(text[place:]) == tokenizer.encode(text)
    wrong = 4 + 301
    assert tokenizer.encode(text[:wrong]) + tokenizer.encode(text[wrong:]) != tokenizer.encode(text)


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        (r'"[^"]*"|[^"\s]+|\s+', ['"a b"', '"c de"', " "]),  # inside or outside of quotes?
        (r"x+(?=y)|\w|\s+", ["xx", "xxx", "y"]),  # runs that are a word before a y alone
    ],
)
def test_what_a_word_is_may_depend_on_text_before_and_behind_it(tmp_path, pattern, pieces):
    source = random.Random(2)
    text = "".join(source.choice(pieces) for _ in range(3000))
    given = write(split_by(pattern, text), tmp_path / "given", {"eos": "<s>"})
    Tokenizer.load(given).save(tmp_path)
    for task_bytes in (400, 401, 402):
        assert_whole(tmp_path, [text[:3000]], task_bytes)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "gemma"])
@pytest.mark.parametrize("character", ["a", " ", "7", "\n"])
def test_a_run_of_one_character_is_cut_all_the_same_and_counted(folder_of_kind, kind, character):
    folder, text = folder_of_kind(kind), "x" + character * 5000 + "y"
    cuts = assert_whole(folder, [text], 1000)
    assert cuts in (0, 4)  # 0: the character is a token of its own everywhere
    tokenizer = Tokenizer.load(folder)
    ids, _, _ = encoded(folder, write_spool(folder, [text]), 1000)
    assert len(ids) <= len(tokenizer.encode(text)) + 2 + 8 * cuts


@pytest.mark.parametrize("processes", [1, 2])
def test_files_do_not_depend_on_the_processes(
    folder_of_kind, code_text, monkeypatch, tmp_path, processes, capfd
):
    monkeypatch.setattr("data.encode.TASK_BYTES", 4000)
    folder = folder_of_kind("gpt2")
    texts = [code_text[:20_000], *(f"document {n}" for n in range(300)), code_text[:7000]]
    ranges = write_spool(folder, texts)
    with tqdm(disable=True) as bar:
        split, cuts = write_split(folder, 0, f"train{processes}", "train", processes, bar)
    ids = np.concatenate([np.fromfile(folder / shard.file, "<u2") for shard in split.shards])
    starts = np.load(folder / split.offsets_file).tolist()
    assert (ids.tolist(), starts) == expected(Tokenizer.load(folder), texts)
    assert split.bytes == ranges[:, 1].sum()
    assert cuts == 0
    assert capfd.readouterr().err == ""


def test_where_a_document_is_cut_depends_on_its_text_alone(folder_of_kind, code_text):
    """The same document behind others, and in tasks that are done in another order."""
    folder, text = folder_of_kind("llama3"), code_text[:30_000]
    alone = encoded(folder, write_spool(folder, [text]), 4000)[0]
    ranges = write_spool(folder, ["é" * 1000, text])
    encoder = Encoder(folder, 0, "train", 4000)
    work = [task for task in tasks(ranges, 0, 4000) if task.first == 1]
    blocks = {task: encoder(task).ids for task in reversed(work)}
    encoder.close()
    assert np.concatenate([blocks[task] for task in work]).tolist() == alone
