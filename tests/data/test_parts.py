"""A preparation shared by tasks: the same data set, nothing lost, every missing part named."""

import json
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from data.config import PrepareSettings
from data.files import files_source
from data.hub import hub_source
from data.index import files_of, read_index, verify_checksums
from data.packed import PackedSplit
from data.parts import merge_parts, parse_part, prepare_part
from data.prepare import prepare
from data.sources import Document, Part, files_of_part
from tests.data.test_prepare import stream_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def arguments(data_config, tokenizer_config, text_folder):
    """Settings for the forty text files, one of them a copy of another."""
    (text_folder / "31.txt").write_bytes((text_folder / "04.txt").read_bytes())

    def make(root="parts", **changes):
        values = {"files": f"{text_folder}/*.txt", "seq_len": 64, "validation_bytes": 5000}
        values["root"] = str(text_folder.parent / root)
        return data_config(**(values | changes)), tokenizer_config(vocab_size=330)

    return make


def do(part, arguments):
    return prepare_part(Part(*part), *arguments, progress=False)


def prepare_in_parts(count, arguments):
    for _ in range(2):
        for number in range(count):
            do((number, count), arguments)
    return merge_parts(*arguments)


@pytest.mark.parametrize(("count", "drop"), [(1, False), (3, False), (7, True)])
def test_parts_make_the_data_set_of_one_process(arguments, count, drop):
    one = prepare(*arguments("one", drop_duplicates=drop), progress=False)
    several = prepare_in_parts(count, arguments(drop_duplicates=drop))
    assert several.name == one.name
    expected, index = read_index(one), read_index(several)
    verify_checksums(several, index)
    for split in ("train", "validation"):
        for own, of_one in zip(stream_of(several, split), stream_of(one, split), strict=True):
            assert np.array_equal(own, of_one)
    files = {"shards", "offsets_file", "offsets_sha256"}
    same = {"fingerprint": True, "train": files, "validation": files}
    assert index.model_dump(exclude=same) == expected.model_dump(exclude=same)
    assert index.duplicates.documents == 1
    assert {entry.name for entry in several.iterdir()} == files_of(index)
    assert [entry.name for entry in several.parent.iterdir()] == [several.name]
    rows = PackedSplit(several, "train", 64), PackedSplit(one, "train", 64)
    assert len(rows[0]) == len(rows[1])
    assert all(rows[0][i]["tokens"].equal(rows[1][i]["tokens"]) for i in range(len(rows[0])))


def test_the_training_command_uses_what_was_merged(arguments):
    folder = prepare_in_parts(2, arguments())
    stamp = (folder / "index.json").stat().st_mtime_ns
    assert prepare(*arguments(), progress=False) == folder
    assert merge_parts(*arguments()) == folder
    assert "is complete: nothing to do for part 1 of 2" in do((1, 2), arguments())
    assert (folder / "index.json").stat().st_mtime_ns == stamp
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_a_part_says_what_it_did_and_what_others_have_to_do(arguments):
    told = do((2, 3), arguments())
    assert "part 2 of 3: 13 documents are copied" in told
    assert told.endswith("not yet: 0, 1")
    assert do((0, 3), arguments()).endswith("not yet: 1")
    told = do((1, 3), arguments())  # the last one to be copied is encoded at once
    assert "part 1 of 3 is encoded" in told
    with pytest.raises(ValueError, match=r"of 3 parts these are not encoded: 0, 2\. .*shard=0/3"):
        merge_parts(*arguments())
    for number in (0, 2):
        assert "is encoded" in do((number, 3), arguments())
    assert merge_parts(*arguments()).exists()


def test_a_part_that_is_done_is_not_done_again(arguments):
    do((0, 2), arguments())
    do((1, 2), arguments())
    root = Path(arguments()[0].root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert any(path.name == "train-00001-00000.bin" for path in before)
    do((1, 2), arguments())
    changed = [p.name for p, stamp in before.items() if p.stat().st_mtime_ns != stamp]
    assert changed == []


def run_many(part, arguments, results):
    results.put(do(part, arguments))


def test_tasks_at_the_same_time_plan_once_and_prepare_everything(arguments):
    one = prepare(*arguments("one"), progress=False)
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        results = context.Queue()
        tasks = [(number % 4, 4) for number in range(6)]  # two of them twice
        processes = [
            context.Process(target=run_many, args=(task, arguments(), results)) for task in tasks
        ]
        for process in processes:
            process.start()
        told = [results.get(timeout=100) for _ in processes]
        for process in processes:
            process.join(20)
    assert all("is encoded" in text for text in told)
    folder = merge_parts(*arguments())
    assert np.array_equal(stream_of(folder, "train")[0], stream_of(one, "train")[0])


def test_merging_that_was_killed_goes_on(arguments, monkeypatch):
    settings = arguments()
    with monkeypatch.context() as patch:
        patch.setattr("data.parts.tidy", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare_in_parts(2, settings)
    (partial,) = Path(settings[0].root).iterdir()
    assert partial.name.endswith(".of-2")
    shutil.rmtree(partial / "part-00001")  # a part of what was to be removed is gone already
    folder = merge_parts(*settings)
    verify_checksums(folder, read_index(folder))


def test_a_part_and_merging_at_once_are_refused(arguments):
    data, tokenizer = arguments()
    with pytest.raises(ValueError, match="shard=0/2 and merge=true are both given"):
        PrepareSettings(data=data, tokenizer=tokenizer, shard="0/2", merge=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "shard=3 is not a part and their number, such as shard=0/64"),
        ("-1/4", "shard=-1/4 is not a part"),
        ("4/4", "the 4 parts are 0/4 to 3/4; an array of SLURM counts them with --array=0-3"),
        ("0/0", "shard=0/0 is not a part"),
        ("0/-1", "shard=0/-1 is not a part"),
    ],
)
def test_a_part_that_there_is_not_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_part(text)


def test_a_number_alone_is_told_what_a_part_is(arguments):
    data, tokenizer = arguments()
    with pytest.raises(ValueError, match="3 is not a part and their number, such as shard=0/64"):
        PrepareSettings(data=data, tokenizer=tokenizer, shard=3, merge=False)


def test_mistakes_are_named_before_any_work(arguments, tmp_path):
    with pytest.raises(ValueError, match=r"has 40 files, which cannot be shared by 41 tasks"):
        do((0, 41), arguments())
    assert not Path(arguments()[0].root).exists()
    with pytest.raises(ValueError, match=r"no part of .* was prepared with these settings"):
        merge_parts(*arguments("other"))
    do((0, 2), arguments())
    do((0, 3), arguments())
    with pytest.raises(ValueError, match="there are parts of 2 and of 3; one number is allowed"):
        merge_parts(*arguments())
    for call in (lambda given: do((0, 2), given), lambda given: merge_parts(*given)):
        with pytest.raises(ValueError, match="is prepared already: leave out shard and merge"):
            call(arguments(files=None, dir=str(tmp_path)))


def command(*overrides):
    return subprocess.run(
        [sys.executable, "-m", "data.prepare", *overrides], cwd=ROOT, capture_output=True, text=True
    )


def test_the_command_prepares_parts_and_merges_them(text_folder, tmp_path):
    given = [f"data.files={text_folder}/*.txt", f"data.root={tmp_path}/out", "data.seq_len=64"]
    given += ["data.validation_bytes=4e3", "tokenizer.vocab_size=330"]
    done = command(*given, "shard=0/1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("part 0 of 1 is encoded: ")
    done = command(*given, "merge=true")
    assert done.returncode == 0, done.stderr
    assert "written to " in done.stdout


# --- parts of sources


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([1] * 6, 3, [2, 2, 2]),
        ([100, 1, 1, 1], 3, [1, 1, 2]),
        ([1, 1, 1, 100], 3, [2, 1, 1]),
        ([0, 0, 0], 3, [1, 1, 1]),
        ([5], 1, [1]),
    ],
)
def test_parts_are_neighbouring_files_of_about_equal_bytes(sizes, count, expected):
    slices = [files_of_part(sizes, Part(number, count), "it") for number in range(count)]
    assert [part.stop - part.start for part in slices] == expected
    assert [i for part in slices for i in range(len(sizes))[part]] == list(range(len(sizes)))


def names_and_texts(source, count):
    parts = [source.documents(Part(number, count)) for number in range(count)]
    items = [item for part in parts for item in part]
    return [item.text for item in items if isinstance(item, Document)]


def test_parts_of_every_source_joined_are_the_source(tmp_path, data_config):
    for number, texts in enumerate((["a", "b"], ["c"], ["d", "e", "f"])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{number}.jsonl").write_text(lines)
        (tmp_path / "hub").mkdir(exist_ok=True)
        Dataset.from_dict({"text": texts}).to_parquet(tmp_path / f"hub/train-{number}.parquet")
    files = files_source([f"{tmp_path}/*.jsonl"], "text")
    hub = hub_source(data_config(hub=f"{tmp_path}/hub"))
    for source in (files, hub):
        for count in (1, 2, 3):
            assert names_and_texts(source, count) == list("abcdef"), (source.title, count)
        with pytest.raises(ValueError, match=r"has 3 files, which cannot be shared by 4 tasks"):
            names_and_texts(source, 4)


def test_a_part_without_any_text_is_a_part_all_the_same(arguments, text_folder, tmp_path):
    texts = [path.read_text() for path in sorted(text_folder.iterdir())]
    few = tmp_path / "few"
    few.mkdir()
    for name, text in (("a", "".join(texts[:20])), ("b", "".join(texts[20:])), ("c", "")):
        (few / f"{name}.txt").write_text(text)
    one = prepare(*arguments("one", files=f"{few}/*.txt"), progress=False)
    several = prepare_in_parts(3, arguments(files=f"{few}/*.txt"))
    for split in ("train", "validation"):
        assert np.array_equal(stream_of(several, split)[0], stream_of(one, split)[0])
    assert read_index(several).rejected == read_index(one).rejected
    assert read_index(several).rejected.examples == {"empty": ["c.txt"]}
