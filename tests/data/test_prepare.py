"""Preparation: exact contents, nothing half written, no work twice, clear errors."""

import gzip
import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import data.prepare
from data.folder import LOCK_FILE, building, save_array
from data.index import files_of, read_index, verify_checksums
from data.packed import PackedSplit
from data.pool import _give
from data.prepare import prepare
from data.tokenizer import Tokenizer
from tests.full_disk import files_end_at

ROOT = Path(data.prepare.__file__).parents[1]


@pytest.fixture
def settings(data_config, tokenizer_config, text_folder):
    """Data and tokenizer settings for the forty text files."""

    def make(vocab_size=330, **changes):
        changes = {"files": f"{text_folder}/*.txt", "seq_len": 64} | changes
        changes.setdefault("validation_bytes", 5000)
        return data_config(**changes), tokenizer_config(vocab_size=vocab_size)

    return make


def make(settings):
    return prepare(*settings, progress=False)


def stream_of(folder, split):
    index = read_index(folder)
    ids = [np.fromfile(folder / s.file, index.dtype) for s in index.split(split).shards]
    return np.concatenate(ids), np.load(folder / index.split(split).offsets_file)


def documents_of(folder, split):
    """Texts of a split, read back from its tokens by the stored document starts."""
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    ids, starts = stream_of(folder, split)
    parts = np.split(ids, starts[1:])
    assert all(part[0] == tokenizer.bos_id and part[-1] == tokenizer.eos_id for part in parts)
    return [tokenizer.decode(part.tolist()) for part in parts]


def test_every_document_comes_back_exactly_once_and_in_order(settings, text_folder):
    folder = make(settings())
    texts = [p.read_bytes().decode() for p in sorted(text_folder.iterdir())]
    train, validation = documents_of(folder, "train"), documents_of(folder, "validation")
    assert train == [text for text in texts if text in train]
    assert validation == [text for text in texts if text in validation]
    assert sorted(train + validation) == sorted(texts)
    assert folder.name.startswith("mytext-")


def test_index_counts_agree_with_the_files(settings):
    folder = make(settings())
    index = read_index(folder)
    verify_checksums(folder, index)
    for split in ("train", "validation"):
        ids, starts = stream_of(folder, split)
        texts = documents_of(folder, split)
        part = index.split(split)
        assert (part.tokens, part.documents) == (len(ids), len(starts))
        assert part.bytes == sum(len(text.encode()) for text in texts)
        assert (ids == index.eos_id).sum() == (ids == index.bos_id).sum() == part.documents
    assert index.validation.bytes >= 5000
    texts = documents_of(folder, "validation")
    expected = sum(len(gzip.compress(text.encode(), compresslevel=9)) for text in texts)
    assert index.validation.gzip_bytes == expected
    counts = Counter(stream_of(folder, "validation")[0].tolist())
    del counts[index.bos_id]
    total = sum(counts.values())
    entropy = -sum(n / total * math.log(n / total) for n in counts.values())
    assert index.validation.unigram_nats_per_token == pytest.approx(entropy, rel=1e-12)


def test_names_that_are_no_unicode_text_are_written_as_such(settings, text_folder):
    text = (text_folder / "00.txt").read_bytes()
    for name in (b"\xff copy.txt", b"new\nline.txt"):  # the longest, and copies of one another
        Path(os.fsdecode(os.fsencode(text_folder) + b"/" + name)).write_bytes(text * 2)
    Path(os.fsdecode(os.fsencode(text_folder) + b"/\xfe.txt")).touch()
    index = read_index(make(settings()))
    first = r"\udcff copy.txt"
    assert index.duplicates.examples == [f"{first} = new line.txt"]
    assert {item.name for item in index.longest} >= {first, "new line.txt"}
    assert index.rejected.examples == {"empty": [r"\udcfe.txt"]}


def test_special_strings_in_the_text_stay_text(settings, text_folder):
    """The text files hold "</s>" many times; it never becomes the end token."""
    folder = make(settings())
    assert any("</s>" in text for text in documents_of(folder, "train"))


def test_a_prepared_set_is_used_at_once_without_heavy_imports(settings):
    arguments = settings()
    folder = make(arguments)
    stamp = (folder / "index.json").stat().st_mtime_ns
    assert make(arguments) == folder
    assert (folder / "index.json").stat().st_mtime_ns == stamp
    script = (
        "import sys; from data.prepare import prepare; from data.config import *; import json;"
        "d, t = json.loads(sys.argv[1]);"
        "prepare(DataConfig(**d), TokenizerConfig(**t));"
        "assert not {'datasets', 'torch', 'hydra', 'pandas', 'pyarrow'} & set(sys.modules)"
    )
    given = json.dumps([part.model_dump() for part in arguments])
    subprocess.run([sys.executable, "-c", script, given], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"validation_bytes": 6000}, {"vocab_size": 320}],
    ids=lambda change: next(iter(change)),
)
def test_what_determines_the_contents_gives_another_folder(settings, change):
    assert make(settings(**change)) != make(settings())


@pytest.mark.parametrize("change", [{"seq_len": 32}, {"workers": 3}], ids=["seq_len", "workers"])
def test_what_does_not_determine_the_contents_gives_the_same_folder(settings, change):
    assert make(settings(**change)) == make(settings())


def test_changed_text_gives_another_folder(settings, text_folder):
    before = make(settings())
    (text_folder / "07.txt").write_text("something else" * 100)
    after = make(settings())
    assert after != before
    assert read_index(after).fingerprint != read_index(before).fingerprint


def test_fingerprint_does_not_depend_on_place_or_time(settings, text_folder, tmp_path):
    before = make(settings())
    copy = tmp_path / "elsewhere"
    shutil.copytree(text_folder, copy)
    after = make(settings(files=f"{copy}/*.txt"))
    assert after != before
    assert read_index(after).fingerprint == read_index(before).fingerprint


def test_small_shards_and_parts_give_the_same_stream(settings, monkeypatch):
    folder = make(settings())
    expected = {split: stream_of(folder, split) for split in ("train", "validation")}
    shutil.rmtree(folder)
    monkeypatch.setattr("data.encode.SHARD_TOKENS", 1000)
    monkeypatch.setattr("data.encode.TASK_BYTES", 700)
    assert make(settings()) == folder
    assert len(read_index(folder).train.shards) > 5
    for split, (ids, starts) in expected.items():
        again = stream_of(folder, split)
        assert np.array_equal(again[0], ids)
        assert np.array_equal(again[1], starts)


# --- killed and failing runs


def prepare_until_killed(arguments, writes):
    """Prepares in small shards and dies at the given number of writes to disk."""
    import data.encode

    data.encode.SHARD_TOKENS = 5000
    fsync, done = os.fsync, itertools.count(1)

    def counted(descriptor):
        fsync(descriptor)
        if next(done) == writes:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = counted
    make(arguments)


def run_until_killed(arguments, writes):
    process = multiprocessing.get_context("fork").Process(
        target=prepare_until_killed, args=(arguments, writes)
    )
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("writes", [1, 3, 7, 9, 20, 36, 40])
def test_a_killed_preparation_leaves_no_data_set_and_is_continued(settings, monkeypatch, writes):
    """Killed twice, it ends with the same data set as a single run."""
    monkeypatch.setattr("data.encode.SHARD_TOKENS", 5000)
    arguments = settings()
    folder = make(arguments)
    expected = read_index(folder)
    assert len(expected.train.shards) > 5
    shutil.rmtree(folder)
    for number in (writes, 6):
        if not folder.exists():
            assert run_until_killed(arguments, number) == -signal.SIGKILL
            (entry,) = folder.parent.iterdir()
            assert entry.name in (f".partial-{folder.name}", folder.name)
    assert make(arguments) == folder
    assert read_index(folder) == expected
    verify_checksums(folder, expected)
    assert {entry.name for entry in folder.iterdir()} == files_of(expected)


def test_continuing_keeps_complete_shards(settings, monkeypatch):
    monkeypatch.setattr("data.encode.SHARD_TOKENS", 5000)
    arguments = settings()
    assert run_until_killed(arguments, 25) == -signal.SIGKILL
    (partial,) = Path(arguments[0].root).iterdir()
    shards = sorted(partial.glob("train-*.bin"))
    kept = {path.name: path.stat().st_mtime_ns for path in shards[:-1]}
    assert len(kept) >= 2
    folder = make(arguments)
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept


def test_what_another_interrupted_preparation_left_is_named(settings, capsys):
    first, second = settings(), settings(seed=5)
    assert run_until_killed(first, 3) == -signal.SIGKILL
    make(second)
    assert "was interrupted; the same command continues it" in capsys.readouterr().err
    make(first)
    assert len(list(Path(first[0].root).iterdir())) == 2


def test_a_tokenizer_file_is_used_and_told_apart_by_its_contents(
    settings, tokenizer, tokenizer_config, tmp_path
):
    data, _ = settings()
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(tokenizer.model)
    folder = make((data, tokenizer_config(path=str(tmp_path / "a.model"))))
    assert read_index(folder).tokenizer_fingerprint == tokenizer.fingerprint
    assert make((data, tokenizer_config(path=str(tmp_path / "b.model")))) == folder


def build_slowly(folders, results):
    for folder in folders:
        with building(folder) as temporary:
            if temporary is not None:
                time.sleep(0.05)
                (temporary / "done").write_text("x")
        results.put(temporary is not None)


def test_of_several_processes_one_prepares_and_the_others_wait(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    # Many folders, since the ends of several waiting processes have to meet for a race.
    folders = [tmp_path / "root" / f"set{n}" for n in range(20)]
    processes = [context.Process(target=build_slowly, args=(folders, results)) for _ in range(4)]
    for process in processes:
        process.start()
    built = [results.get(timeout=60) for _ in processes for _ in folders]
    for process in processes:
        process.join(20)
    assert sum(built) == len(folders)
    assert sorted(entry.name for entry in (tmp_path / "root").iterdir()) == sorted(
        folder.name for folder in folders
    )
    assert all([entry.name for entry in folder.iterdir()] == ["done"] for folder in folders)


def test_a_lock_taken_while_its_folder_is_removed_is_left_to_its_taker(tmp_path, monkeypatch):
    folder = tmp_path / "set"
    with building(folder):
        pass
    remove = os.rmdir

    def remove_too_late(path, **options):
        (tmp_path / ".partial-set" / LOCK_FILE).touch()  # another process
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", remove_too_late)
    with building(folder) as temporary:
        assert temporary is None
    monkeypatch.undo()
    with building(folder) as temporary:
        assert temporary is None
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("limit", [1000, 20_000])
def test_a_full_disk_is_told_with_the_folder_and_the_command_continues(settings, limit):
    """A real one: the process may write no file of more than `limit` bytes."""
    arguments = settings()
    with files_end_at(limit), pytest.raises(OSError, match="File too large") as error:
        make(arguments)
    assert Path(error.value.filename).parent == Path(arguments[0].root)
    verify_checksums(folder := make(arguments), read_index(folder))


def test_arrays_are_written_as_numpy_writes_them(tmp_path):
    for array in (np.arange(5), np.zeros(0, dtype=np.int64), np.array([1, 2**63], dtype=np.uint64)):
        save_array(tmp_path / "a.npy", array)
        np.save(tmp_path / "b.npy", array)
        assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_no_room_for_an_array_is_told_as_such(tmp_path):
    (tmp_path / "full.npy").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        save_array(tmp_path / "full.npy", np.arange(100_000))


# --- an explicit folder


def test_an_explicit_folder_is_used_with_its_own_tokenizer(settings, tmp_path):
    folder = make(settings())
    moved = folder.rename(tmp_path / "moved")
    assert make(settings(files=None, dir=str(moved), vocab_size=999)) == moved
    assert make(settings(dir=str(moved))) == moved


def test_an_explicit_folder_from_another_source_is_refused(settings, text_folder):
    folder = make(settings())
    (text_folder / "07.txt").write_text("changed")
    with pytest.raises(ValueError, match=r"was prepared from .*Type data\.files=null"):
        make(settings(dir=str(folder)))


def test_an_explicit_folder_that_is_none_is_refused(settings, tmp_path):
    with pytest.raises(ValueError, match=r"is not a prepared data set: it has no index\.json"):
        make(settings(files=None, dir=str(tmp_path)))


def test_what_an_explicit_folder_was_not_prepared_with_is_refused(settings, text_folder):
    (text_folder / "copy.txt").write_bytes((text_folder / "07.txt").read_bytes())
    kept, dropped = make(settings()), make(settings(drop_duplicates=True))
    as_it_is = {"files": None, "drop_duplicates": True}
    assert make(settings(**as_it_is, dir=str(dropped))) == dropped
    with pytest.raises(ValueError, match=r"drop_duplicates=true: data\.dir=.* with 1 of them"):
        make(settings(**as_it_is, dir=str(kept)))
    other = make(settings(vocab_size=340)) / "tokenizer.model"
    data, tokenizer = settings(files=None, dir=str(kept))
    for path in (str(kept / "tokenizer.model"), None):
        make((data, tokenizer.model_copy(update={"path": path})))
    with pytest.raises(ValueError, match=r"^tokenizer\.path=.*: data\.dir=.* keeps it"):
        make((data, tokenizer.model_copy(update={"path": str(other)})))


def test_a_vocabulary_of_much_text_is_told(settings, monkeypatch, capsys):
    make(settings())
    assert "vocabulary" not in capsys.readouterr().err
    monkeypatch.setattr("data.plan._SLOW_SAMPLE", 20_000)
    make(settings(vocab_size=331))
    assert "note: a vocabulary of 331 ids is trained on 0 MB" in capsys.readouterr().err


def test_a_prepared_data_set_among_the_files_is_refused(settings, text_folder):
    given = {"files": f"{text_folder}/**/*", "root": str(text_folder / "prepared")}
    folder = make(settings(**given))
    with pytest.raises(ValueError, match=r"is a prepared data set, no text\. Give") as error:
        make(settings(**given, skip_bad_records=True))
    assert str(folder) in str(error.value)
    assert make(settings(**given | {"files": f"{text_folder}/*.txt"})) == folder


# --- small corpora


def test_one_document_is_cut_in_two(settings, tmp_path):
    text = "".join(f"line {i} of the only text\n" for i in range(300))
    (tmp_path / "one.txt").write_text(text)
    folder = make(settings(files=str(tmp_path / "one.txt"), vocab_size=283))
    (train,), (validation,) = documents_of(folder, "train"), documents_of(folder, "validation")
    assert train + validation == text
    assert train.endswith("\n")
    assert 0.05 < len(validation) / len(text) < 0.15
    assert any("longest" in note for note in read_index(folder).notes)
    assert folder.name.startswith("one-")


def test_a_small_corpus_gives_a_tenth_and_says_so(settings, capsys):
    folder = make(settings(validation_bytes=400_000))
    index = read_index(folder)
    assert 0.08 < index.validation.bytes / (index.validation.bytes + index.train.bytes) < 0.2
    assert "less than 4 x data.validation_bytes=400000" in index.notes[0]
    assert index.notes[0] in capsys.readouterr().err


def test_a_corpus_that_fills_no_row_is_refused_with_numbers(settings):
    folder = make(settings())
    tokens = read_index(folder).train.tokens
    with pytest.raises(ValueError, match=rf"{tokens} training tokens.*data.seq_len={tokens - 1} "):
        make(settings(seq_len=tokens))
    assert make(settings(seq_len=tokens - 1)) == folder
    assert len(PackedSplit(folder, "train", tokens - 1)) == 1


def test_too_large_a_vocabulary_is_refused_and_leaves_nothing(settings):
    arguments = settings(vocab_size=30_000)
    with pytest.raises(ValueError, match=r"largest possible value is \d+"):
        make(arguments)
    assert list(Path(arguments[0].root).iterdir()) == []


# --- the embedded corpus


def test_the_standard_library_prepares_in_seconds(data_config, tokenizer_config):
    folder = prepare(data_config(), tokenizer_config(), progress=False)
    index = read_index(folder)
    assert folder.name.startswith("stdlib-")
    assert index.vocab_size == 2048
    assert index.validation.bytes >= 400_000
    assert index.train.bytes > 8_000_000
    assert 2.5 < index.train.bytes / index.train.tokens < 4.5


# --- data.verify


DAMAGE = {
    "flipped": (lambda path: flip(path), r"train-00000\.bin: its contents changed"),
    "truncated": (lambda path: os.truncate(path, 100), r"train-00000\.bin: it has 100 bytes"),
    "missing": (lambda path: path.unlink(), r"train-00000\.bin: it is missing"),
    "index": (lambda path: (path.parent / "index.json").unlink(), r"it has no index\.json"),
}


def flip(path):
    contents = bytearray(path.read_bytes())
    contents[1000] ^= 4
    path.write_bytes(contents)


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_with_verify_every_damage_is_named_before_the_data_is_used(settings, damage, message):
    folder = make(settings())
    given = settings(files=None, dir=str(folder), verify=True)
    assert make(given) == folder
    damage(folder / "train-00000.bin")
    with pytest.raises(ValueError, match=message) as error:
        make(given)
    assert str(folder) in str(error.value)


def test_a_death_of_an_encoding_process_keeps_what_is_complete(settings, monkeypatch):
    monkeypatch.setattr("data.encode.TASK_BYTES", 2000)
    monkeypatch.setattr("data.encode.SHARD_TOKENS", 5000)
    arguments = settings(processes=2)
    expected = read_index(folder := make(arguments))
    shutil.rmtree(folder)
    killed = []

    def give(process, pipe, task):
        if len(killed) == 0 and task.first >= 20:
            killed.append(process.kill())
        _give(process, pipe, task)

    with monkeypatch.context() as patch:
        patch.setattr("data.pool._give", give)
        with pytest.raises(ChildProcessError, match="was killed by SIGKILL"):
            make(arguments)
    (partial,) = folder.parent.iterdir()
    stamps = {path.name: path.stat().st_mtime_ns for path in partial.glob("train-*.starts")}
    assert len(stamps) >= 2
    assert make(arguments) == folder
    assert read_index(folder) == expected
    first = folder / "train-00000.bin"
    assert first.stat().st_mtime_ns <= min(stamps.values())
