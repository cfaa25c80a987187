"""Sources: text, JSON lines, Parquet, Arrow, data sets by name; every faulty input named."""

import gzip
import json
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from data.files import files_source
from data.hub import hub_source
from data.sources import Document, LeftOut
from data.stdlib import stdlib_source

TEXTS = ["first\ttext\r\n", "2020-01-01", "zweiter Text \u2028 ▁", " "]
ROOT = Path(__file__).parents[2]


def texts(source):
    return [item.text for item in source.documents() if isinstance(item, Document)]


def left_out(source):
    return [item for item in source.documents() if isinstance(item, LeftOut)]


def write_jsonl(path, records):
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        file.write(lines)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "jsonl.gz", "parquet", "arrow"])
def test_every_kind_of_file_gives_its_texts_in_order(tmp_path, kind):
    if kind == "txt":
        for number, text in enumerate(TEXTS):
            (tmp_path / f"{number}.txt").write_bytes(text.encode())
    elif kind.startswith("jsonl"):
        write_jsonl(tmp_path / f"a.{kind}", [{"text": text, "n": 1} for text in TEXTS])
    else:
        records = Dataset.from_dict({"n": [1] * len(TEXTS), "text": TEXTS})
        if kind == "parquet":
            records.to_parquet(tmp_path / "a.parquet")
        else:
            records.save_to_disk(tmp_path / "saved")
            next((tmp_path / "saved").glob("*.arrow")).rename(tmp_path / "a.arrow")
    source = files_source([f"{tmp_path}/*.{kind}"], "text")
    assert texts(source) == TEXTS
    assert texts(source) == TEXTS  # can be read again


def test_several_globs_are_sorted_and_each_file_is_read_once(tmp_path):
    for name in ("b.py", "a.md", "c.txt", "deep/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    source = files_source([f"{tmp_path}/*.txt", f"{tmp_path}/**/*"], "text")
    assert texts(source) == ["a.md", "b.py", "c.txt", "deep/d.txt"]


def test_a_path_that_exists_is_taken_literally(tmp_path):
    (tmp_path / "a[1].txt").write_text("x")
    assert texts(files_source([f"{tmp_path}/a[1].txt"], "text")) == ["x"]


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("my text/*.jsonl", "my-text"), ("a/b.txt", "b"), ("x/**/*.py", "x"), ("*.txt", "files")],
)
def test_folder_name_comes_from_the_glob(tmp_path, monkeypatch, pattern, name):
    monkeypatch.chdir(tmp_path)
    path = Path(pattern.replace("**", "deep").replace("*", "one"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"text": "x"}')
    assert files_source([pattern], "text").name == name


def test_a_glob_that_matches_nothing_is_named_with_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"none/\*\.txt matches no file \(looked from {tmp_path}"):
        files_source(["none/*.txt"], "text")
    (tmp_path / "sub").mkdir()
    with pytest.raises(ValueError, match="matches folders only"):
        files_source(["sub"], "text")


@pytest.mark.parametrize("pattern", ["**/*.txt", "*/*.txt", "*/b.txt", "*/*/c.txt"])
def test_a_folder_that_cannot_be_read_is_not_passed_over(tmp_path, monkeypatch, pattern):
    for name in ("a.txt", "open/b.txt", "open/deep/c.txt", "closed/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    files_source([f"{tmp_path}/{pattern}"], "text")
    # Root may read everything, so that modes of files would test nothing.
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path))
    with pytest.raises(PermissionError) as error:
        files_source([f"{tmp_path}/{pattern}"], "text")
    assert error.value.filename == str(tmp_path / "closed")
    files_source([f"{tmp_path}/open/**/*.txt"], "text")


def test_a_link_into_nowhere_and_a_pipe_are_not_passed_over(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    assert texts(files_source([f"{tmp_path}/*"], "text")) == ["x", "x"]
    (tmp_path / "b.txt").unlink()
    (tmp_path / "b.txt").symlink_to("gone")
    with pytest.raises(ValueError, match=r"/b\.txt is a link that leads nowhere"):
        files_source([f"{tmp_path}/*.txt"], "text")
    os.mkfifo(tmp_path / "c.md")
    with pytest.raises(ValueError, match=r"/c\.md is no regular file"):
        files_source([f"{tmp_path}/c.*"], "text")


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.txt.gz", "A.JSON.GZ", "a.parquet.xz"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_compressed_files_are_refused_before_they_are_read(tmp_path, name, skip_bad):
    (tmp_path / name).write_bytes(b"\x28\xb5")
    with pytest.raises(ValueError, match=rf"/{name} is compressed; .* only \.jsonl\.gz is read"):
        files_source([f"{tmp_path}/*"], "text", skip_bad)


def test_kinds_of_files_are_known_in_capitals_too(tmp_path):
    write_jsonl(tmp_path / "A.JSONL", [{"text": "one"}])
    (tmp_path / "B.Jsonl.GZ").write_bytes(gzip.compress(b'{"text": "two"}\n'))
    Dataset.from_dict({"text": ["three"]}).to_parquet(tmp_path / "c.parquet")
    (tmp_path / "c.parquet").rename(tmp_path / "C.PARQUET")
    assert texts(files_source([f"{tmp_path}/*"], "text")) == ["one", "two", "three"]


def test_records_that_are_read_as_text_are_told(tmp_path, capsys):
    for name in ("a.txt", "b.json", "c.CSV"):
        (tmp_path / name).write_text('{"text": "x"}')
    assert texts(files_source([f"{tmp_path}/*"], "text")) == ['{"text": "x"}'] * 3
    told = capsys.readouterr().err
    assert told.startswith(
        f"note: 2 files such as {tmp_path}/b.json are read as text, one document"
    )
    assert "records are read from .jsonl, .jsonl.gz, .parquet, .arrow" in told


def test_empty_documents_and_files_are_reported(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"text": ""}, {"text": "x"}])
    (tmp_path / "b.jsonl").write_text("\n")
    (tmp_path / "c.txt").write_text("")
    source = files_source([f"{tmp_path}/*"], "text")
    assert texts(source) == ["x"]
    assert left_out(source) == [
        LeftOut("a.jsonl:1", "empty"),
        LeftOut("b.jsonl", "no records"),
        LeftOut("c.txt", "empty"),
    ]


def test_all_files_that_are_not_utf8_are_named_with_the_place(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02d}.txt").write_bytes(b"x" * number + b"\xff")
    (tmp_path / "z.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(ValueError, match="Not valid UTF-8") as error:
        list(files_source([f"{tmp_path}/*"], "text").documents())
    assert f"{tmp_path}/03.txt (byte 3)" in str(error.value)
    assert "and 3 more" in str(error.value)
    with pytest.raises(ValueError, match=r"z\.jsonl \(byte 24\)"):
        list(files_source([f"{tmp_path}/*.jsonl"], "text").documents())


@pytest.mark.parametrize("kind", ["txt", "jsonl", "jsonl.gz"])
def test_a_byte_order_mark_at_the_start_of_a_file_is_no_text(tmp_path, kind):
    text = "\ufeffmarked \ufeff\n"  # the first character is the mark, the second is text
    if kind == "txt":
        (tmp_path / "a.txt").write_bytes(text.encode())
    else:
        open_file = gzip.open if kind == "jsonl.gz" else open
        with open_file(tmp_path / f"a.{kind}", "wt", encoding="utf-8-sig") as file:
            file.write(json.dumps({"text": text[1:]}, ensure_ascii=False) + "\n")
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    source = files_source([f"{tmp_path}/*"], "text")
    assert texts(source) == [text[1:], text][: 1 if kind == "txt" else 2]
    assert left_out(source) == []


def test_a_file_of_nothing_but_a_byte_order_mark_is_empty(tmp_path):
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf")
    source = files_source([f"{tmp_path}/*"], "text")
    assert left_out(source) == [LeftOut("a.txt", "empty"), LeftOut("b.jsonl", "no records")]


@pytest.mark.parametrize("size", [1, 3, 5, 64])
def test_a_long_text_file_is_read_in_pieces(tmp_path, monkeypatch, size):
    monkeypatch.setattr("data.files._PIECE", size)
    text = "\ufeff" + "aé日😀\r\n" * 3 + "\ufeff"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt").write_bytes(b"ok" * 9 + b"\xe6\x97")
    items = files_source([f"{tmp_path}/a.txt"], "text").documents()
    pieces = list(next(items).pieces())
    assert list(items) == []
    assert "".join(pieces) == text[1:]
    assert (len(pieces) > 1) == (size < 64)
    damaged = files_source([f"{tmp_path}/b.txt"], "text")
    with pytest.raises(ValueError, match=r"b\.txt \(byte 18\)"):
        [list(item.pieces()) for item in damaged.documents()]


def test_the_byte_named_in_an_error_counts_the_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfab\xff")
    with pytest.raises(ValueError, match=r"a\.txt \(byte 5\)"):
        list(files_source([f"{tmp_path}/*"], "text").documents())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"body": "x", "id": 1}', r"record 2 has no column 'text'; its columns are body, id"),
        ('{"text": 5, "id": 1}', r"record 2 has int 5 in column 'text', not text; its columns are"),
        ('{"text": null}', r"record 2 has NoneType None in column 'text'"),
        ('["x"]', r"record 2 is list, not an object"),
        ('{"text": "x"', r"record 2 is not JSON"),
        ("[" * 100_000, r"record 2 is not JSON"),
        (r'{"text": "a\ud800"}', r"record 2: The text holds the lone surrogate U\+D800"),
    ],
)
def test_a_faulty_json_record_is_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl " + message):
        list(files_source([f"{tmp_path}/a.jsonl"], "text").documents())


def test_a_cut_off_gzip_file_is_named(tmp_path):
    write_jsonl(tmp_path / "a.jsonl.gz", [{"text": "x" * n} for n in range(100)])
    whole = (tmp_path / "a.jsonl.gz").read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz is not a complete gzip file"):
        list(files_source([f"{tmp_path}/*.gz"], "text").documents())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"body": ["x"], "n": [1]}, r"record 1 has no column 'text'; its columns are body, n"),
        (
            {"text": [1, 2], "m": [3, 4]},
            r"record 1 has int 1 in column 'text'.*columns are text, m",
        ),
        ({"text": ["x", None]}, r"record 2 has NoneType None in column 'text'"),
    ],
)
def test_a_faulty_parquet_record_is_named(tmp_path, values, message):
    Dataset.from_dict(values).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet " + message):
        list(files_source([f"{tmp_path}/a.parquet"], "text").documents())


@pytest.mark.parametrize("content", [b"", b"nonsense" * 9], ids=["empty", "nonsense"])
def test_a_damaged_parquet_file_is_one_clear_error(tmp_path, caplog, monkeypatch, content):
    (tmp_path / "a.parquet").write_bytes(content)
    monkeypatch.setattr(logging.getLogger("datasets"), "handlers", [caplog.handler])
    with pytest.raises(
        ValueError, match=r"a\.parquet cannot be read: .*[^.]\. Is it a complete \.parquet file"
    ):
        list(files_source([f"{tmp_path}/a.parquet"], "text").documents())
    assert caplog.records == []


def test_a_data_set_by_name_is_streamed_in_order(tmp_path, data_config):
    """A local folder takes the way of a hub name through `datasets`."""
    Dataset.from_dict({"text": TEXTS, "n": [1, 2, 3, 4]}).to_parquet(tmp_path / "train.parquet")
    source = hub_source(data_config(hub=str(tmp_path)))
    assert texts(source) == TEXTS
    assert source.name.endswith("-train")
    for change, message in [
        ({"hub_split": "nope"}, r"cannot be read: ValueError: Bad split: nope.*data\.hub_split"),
        ({"text_column": "n"}, "record 1 has int 1 in column 'n'"),
        ({"text_column": "body"}, "record 1 has no column 'body'; its columns are text, n"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(hub_source(data_config(hub=str(tmp_path), **change)).documents())


def test_a_folder_of_save_to_disk_is_read_as_the_message_says(tmp_path, data_config):
    folder = tmp_path / "my data"
    Dataset.from_dict({"text": TEXTS}).save_to_disk(folder)
    with pytest.raises(ValueError, match="was written by `save_to_disk`") as error:
        hub_source(data_config(hub=str(folder)))
    typed = shlex.split(str(error.value))[-1]
    assert texts(files_source([typed.removeprefix("data.files=").strip("'")], "text")) == TEXTS


def test_a_local_folder_with_several_kinds_of_files_is_told(tmp_path, data_config, capsys):
    write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
    hub_source(data_config(hub=str(tmp_path)))
    assert capsys.readouterr().err == ""
    (tmp_path / "b.txt").write_text("y")
    hub_source(data_config(hub=str(tmp_path)))
    assert "files of several kinds (.txt, .jsonl)" in capsys.readouterr().err


def test_an_unreachable_hub_is_one_clear_error(data_config):
    script = (
        "import sys, json; from data.config import DataConfig; from data.hub import hub_source\n"
        "try: list(hub_source(DataConfig(**json.loads(sys.argv[1]))).documents())\n"
        "except ValueError as error: print(error)"
    )
    given = json.dumps(data_config(hub="nobody/nothing").model_dump())
    done = subprocess.run(
        [sys.executable, "-c", script, given],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("data.hub=nobody/nothing ")
    assert "cannot be read" in done.stdout
    assert "data=prepared data.dir=FOLDER" in done.stdout


def test_the_standard_library_source_leaves_tests_and_tables_out():
    source = stdlib_source()
    items = list(source.documents())
    documents = [item for item in items if isinstance(item, Document)]
    left_out = {"test", "tests", "encodings", "site-packages"}
    names = {item.name for item in items}
    assert "random.py" in names
    assert not any(left_out & set(name.split("/")) for name in names)
    assert sum(len(item.text.encode()) for item in documents) > 8_000_000
    assert source.description == stdlib_source().description
