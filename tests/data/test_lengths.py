"""Windows by the length of the document in their middle: found by number, stored, never trusted."""

import pickle
import random
from multiprocessing.pool import ThreadPool

import numpy as np
import pytest

from data import length_file, lengths
from data.length_file import open_buckets
from data.lengths import names
from data.starts import DocumentStarts

BOUNDS = [3, 10, 60, 1000]


@pytest.fixture
def documents(tmp_path):
    """Lengths of documents, and a function that opens the buckets of windows over them."""
    source = random.Random(4)
    sizes = [source.choice([1, 2, 3, 9, 10, 50, 200]) for _ in range(60)]

    def opened(length=7, bounds=BOUNDS, fingerprint="0", windows=None, sizes=sizes):
        path = tmp_path / "starts.npy"
        np.save(path, np.cumsum([0, *sizes[:-1]], dtype=np.int64))
        tokens = sum(sizes)
        starts = DocumentStarts(path, tokens)
        windows = windows or -(-(tokens - 1) // length)
        return open_buckets(tmp_path, fingerprint, starts, tokens, length, windows, bounds)

    opened.sizes = sizes
    opened.folder = tmp_path
    return opened


def found(buckets):
    """The bucket of every window, by looking up all of every bucket."""
    codes = {}
    for b, size in enumerate(buckets.sizes):
        numbers = [buckets.window(b, n) for n in range(size)]
        assert numbers == sorted(set(numbers))
        assert not codes.keys() & set(numbers)
        codes |= dict.fromkeys(numbers, b)
    return [codes[i] for i in range(len(codes))]


def walked(sizes, length, windows, bounds=BOUNDS):
    """The same by a walk over the documents."""
    owner = [size for size in sizes for _ in range(size)]
    shown = [owner[min(i * length + length // 2, len(owner) - 1)] for i in range(windows)]
    return [sum(size >= bound for bound in bounds) for size in shown]


def stored(folder):
    """The file of the buckets in a folder."""
    (path,) = folder.glob("lengths-*.bin")
    return path


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize(("block", "chunk"), [(3, 5), (4, 1), (4096, 1 << 15)])
def test_windows_are_those_of_a_walk_over_the_documents(
    monkeypatch, documents, length, block, chunk
):
    monkeypatch.setattr(lengths, "BLOCK", block)
    monkeypatch.setattr(length_file, "BLOCK", block)
    monkeypatch.setattr(length_file, "_WINDOWS", 2 * block)
    monkeypatch.setattr(length_file, "_DOCUMENTS", chunk)
    windows = -(-(sum(documents.sizes) - 1) // length)
    for count in (windows, windows - 1):  # the last row may be left out
        expected = walked(documents.sizes, length, count)
        for buckets in (documents(length, windows=count), documents(length, windows=count)):
            assert found(buckets) == expected
            assert buckets.sizes == [expected.count(b) for b in range(5)]


@pytest.mark.parametrize("sizes", [[5, 0, 9, 0, 0, 30, 1], [1, 1, 1, 40, 0], [40], [2, 2, 0, 3, 1]])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 16])
def test_documents_without_tokens_and_ends_inside_a_window_are_told_apart(documents, sizes, length):
    windows = -(-(sum(sizes) - 1) // length)
    assert found(documents(length, sizes=sizes)) == walked(sizes, length, windows)


def test_they_are_computed_once_and_read_after_that(monkeypatch, documents):
    expected = found(documents())
    monkeypatch.setattr(length_file, "bucket_codes", None)
    assert found(documents()) == expected
    assert found(pickle.loads(pickle.dumps(documents()))) == expected
    assert sorted(path.name for path in documents.folder.iterdir()) == [
        stored(documents.folder).name,
        "lengths.lock",
        "starts.npy",
    ]


@pytest.mark.parametrize("change", [{"length": 8}, {"bounds": [3, 10]}, {"fingerprint": "1"}])
def test_other_windows_bounds_or_contents_have_a_file_of_their_own(documents, change):
    documents()
    first = stored(documents.folder)
    first.rename(kept := documents.folder / "kept")
    expected = found(documents(**change))
    other = stored(documents.folder)
    assert other.name != first.name
    # A file under the name of another one is not taken for it.
    other.write_bytes(kept.read_bytes())
    assert found(documents(**change)) == expected


def test_any_byte_that_changed_is_noticed(documents, capsys):
    expected = found(documents())
    path = stored(documents.folder)
    whole = path.read_bytes()
    for at in [0, 20, len(whole) // 2, len(whole) - 33, len(whole) - 1]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert found(documents()) == expected
        assert f"{path} is damaged; its contents are computed again" in capsys.readouterr().err
        assert path.read_bytes() == whole
    for other in (b"", whole[:-1], whole + b"0"):
        path.write_bytes(other)
        assert found(documents()) == expected
        assert path.read_bytes() == whole


def test_what_changes_while_it_is_in_use_is_refused(documents):
    buckets = documents()
    path = stored(documents.folder)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"\n") + 1
    number = whole[at]
    whole[at] = number + 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="changed on disk"):
        buckets.window(number, 0)


def test_an_interrupted_computation_leaves_nothing_that_is_read(monkeypatch, documents):
    def killed(*_):
        yield np.zeros(3, np.uint8)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(length_file, "bucket_codes", killed)
        with pytest.raises(KeyboardInterrupt):
            documents()
    assert not list(documents.folder.glob("lengths-*"))
    assert found(documents()) == walked(documents.sizes, 7, -(-(sum(documents.sizes) - 1) // 7))


def test_where_nothing_can_be_written_they_stay_in_memory(documents, capsys):
    expected = found(documents())
    path = stored(documents.folder)
    path.unlink()
    lock = documents.folder / "lengths.lock"
    lock.unlink()
    lock.mkdir()
    buckets = documents()
    assert found(buckets) == expected
    assert found(pickle.loads(pickle.dumps(buckets))) == expected
    assert not path.exists()
    err = capsys.readouterr().err
    assert f"note: data.by_length: {path}: Is a directory. So the buckets take" in err


def test_of_several_processes_that_start_together_one_computes(monkeypatch, documents):
    calls = []
    plain = length_file.bucket_codes
    monkeypatch.setattr(length_file, "bucket_codes", lambda *a: (calls.append(1), plain(*a))[1])
    documents(fingerprint="1")  # the starts are written
    calls.clear()
    with ThreadPool(4) as pool:
        results = pool.map(lambda _: found(documents_of(documents)), range(4))
    assert len(calls) == 1
    assert results == [results[0]] * 4


def documents_of(documents):
    """Opens the buckets over starts that are there already."""
    tokens = sum(documents.sizes)
    starts = DocumentStarts(documents.folder / "starts.npy", tokens)
    return open_buckets(documents.folder, "2", starts, tokens, 7, -(-(tokens - 1) // 7), BOUNDS)


@pytest.mark.parametrize("sizes", [[5, -2, 9], [5, 9, -1, 7], [5, 50, -40, 3]])
def test_starts_that_do_not_rise_are_refused(monkeypatch, documents, sizes):
    monkeypatch.setattr(length_file, "_DOCUMENTS", 2)
    with pytest.raises(ValueError, match=r"starts\.npy: the starts of documents .* do not rise"):
        documents(sizes=sizes)


def test_buckets_are_named_by_the_lengths_in_them():
    assert list(names([4096, 32768])) == ["below 4,096", "4,096 to 32,767", "32,768 and more"]
