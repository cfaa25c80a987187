"""Encoding in tasks: the tokens of the whole text, whatever the cuts, processes and restarts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm import tqdm

from data.encode import Encoder, tasks, write_split
from data.plan import part_folder, ranges_file

LONG = "def f(x):\n    return 'δέλτα 😀'  # ▁ \ue000\t\t" * 40


def write_spool(folder, texts):
    """Makes these texts the training documents of the folder's only part; returns their ranges."""
    part_folder(folder, 0).mkdir(exist_ok=True)
    data = [text.encode() for text in texts]
    (part_folder(folder, 0) / "spool").write_bytes(b"".join(data))
    sizes = np.array([len(text) for text in data], dtype=np.int64)
    ranges = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1)
    np.save(ranges_file(folder, 0, "train"), ranges)
    return ranges


@pytest.fixture
def spooled(tmp_path, tokenizer):
    """Writes a folder with a tokenizer and one part whose training documents are these texts."""

    def write(texts):
        tokenizer.save(tmp_path)
        return tmp_path, write_spool(tmp_path, texts)

    return write


def encoded(folder, ranges, task_bytes):
    encoder = Encoder(folder, 0, "train", task_bytes)
    blocks = [encoder(task) for task in tasks(ranges, 0, task_bytes)]
    cuts = encoder.unsafe_cuts()
    encoder.close()
    before = np.cumsum([0, *(len(block.ids) for block in blocks)])
    starts = [b + s for b, block in zip(before, blocks, strict=False) for s in block.starts]
    assert sum(block.bytes for block in blocks) == ranges[:, 1].sum()
    return np.concatenate([block.ids for block in blocks]).tolist(), starts, cuts


def expected(tokenizer, texts):
    documents = [[tokenizer.bos_id, *tokenizer.encode(t), tokenizer.eos_id] for t in texts]
    starts = itertools.accumulate((len(ids) for ids in documents[:-1]), initial=0)
    return [id for ids in documents for id in ids], list(starts)


@pytest.mark.parametrize("task_bytes", [64, 333, 1000, 1 << 20])
def test_tasks_give_the_tokens_of_every_whole_document(spooled, tokenizer, task_bytes):
    texts = ["a", LONG, "x = 1\n" * 30, "▁", LONG[7:], "end"]
    folder, ranges = spooled(texts)
    ids, starts, cuts = encoded(folder, ranges, task_bytes)
    assert (ids, starts) == expected(tokenizer, texts)
    assert cuts == 0


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), max_size=30),
    task_bytes=st.integers(1, 30),
    data=st.data(),
)
def test_tasks_hold_every_document_once_and_in_order(sizes, task_bytes, data):
    first = data.draw(st.integers(0, len(sizes)))
    ranges = np.array([[0, size] for size in sizes], dtype=np.int64).reshape(-1, 2)
    seen = []
    for task in tasks(ranges, first, task_bytes):
        assert task.first < task.end
        held = sizes[task.first : task.end]
        if task.piece is None:
            assert len(held) == 1 or sum(held) <= task_bytes
            seen += range(task.first, task.end)
        else:
            assert task.end == task.first + 1
            assert sum(held) > task_bytes
            seen += [task.first] * (task.piece == 0)
            assert task.piece < -(-sum(held) // task_bytes)
    assert seen == list(range(first, len(sizes)))


def test_a_text_without_a_safe_place_is_cut_all_the_same_and_that_is_counted(spooled, tokenizer):
    text = "x" + " " * 5000 + "y"
    folder, ranges = spooled([text])
    ids, starts, cuts = encoded(folder, ranges, 1000)
    assert cuts == 4  # at 1,000 to 4,000; the rest from 5,000 on is part of the last piece
    assert tokenizer.decode(ids) == text
    assert starts == [0]
    whole, _ = expected(tokenizer, [text])
    assert ids.count(tokenizer.bos_id) == whole.count(tokenizer.bos_id) == 1
    assert len(whole) <= len(ids) <= len(whole) + 4 * cuts


def test_a_cut_that_may_change_tokens_falls_between_characters(spooled, tokenizer_config):
    from data.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(["δδδδ δδδδδδδδ"] * 20, tokenizer_config(vocab_size=268))
    text = "δ" * 1000
    folder, ranges = spooled([text])
    tokenizer.save(folder)
    ids, _, cuts = encoded(folder, ranges, 333)
    assert cuts == 5
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_files_do_not_depend_on_the_processes(spooled, tokenizer, monkeypatch, processes):
    monkeypatch.setattr("data.encode.TASK_BYTES", 500)
    monkeypatch.setattr("data.encode.SHARD_TOKENS", 700)
    texts = [LONG, *(f"document {n}" for n in range(300)), LONG[3:]]
    folder, ranges = spooled(texts)
    with tqdm(disable=True) as bar:
        split, cuts = write_split(folder, 0, "train", "train", processes, bar)
    ids = np.concatenate([np.fromfile(folder / shard.file, "<u2") for shard in split.shards])
    assert (ids.tolist(), np.load(folder / split.offsets_file).tolist()) == expected(
        tokenizer, texts
    )
    assert [shard.tokens for shard in split.shards[:-1]] == [700] * (len(split.shards) - 1)
    assert split.bytes == ranges[:, 1].sum()
    assert cuts == 0
