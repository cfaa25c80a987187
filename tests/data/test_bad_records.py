"""Records without usable text: left out and counted with `data.skip_bad_records=true`."""

import json
import subprocess
import sys

import pytest
from datasets import Dataset

from data.files import files_source
from data.sources import Document


def read(tmp_path, skip_bad=True):
    """Text by name, and the reason by name of what is left out."""
    used, left_out = {}, {}
    for item in files_source([f"{tmp_path}/*"], "text", skip_bad).documents():
        if isinstance(item, Document):
            used[item.name] = "".join(item.pieces())
        else:
            left_out[item.name] = item.reason
    return used, left_out


def test_json_lines(tmp_path):
    lines = [
        b'{"text": "one"}',
        b'{"body": "x"}',
        b'{"text": 5}',
        b'{"text": null}',
        b'["x"]',
        b'{"text": "x"',
        rb'{"text": "a\ud800"}',
        b'{"text": "\xff"}',
        b'{"text": ""}',
        b'{"text": "two"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    used, left_out = read(tmp_path)
    assert used == {"a.jsonl:1": "one", "a.jsonl:10": "two"}
    assert list(left_out.values()) == [
        "without column 'text'",
        "int instead of text",
        "NoneType instead of text",
        "not an object",
        "not JSON",
        "with a lone surrogate",
        "not UTF-8",
        "empty",
    ]


def test_text_files_short_and_long(tmp_path, monkeypatch):
    monkeypatch.setattr("data.files._PIECE", 8)
    for name, data in {
        "a": "日本語の文".encode(),
        "b": b"ok" * 9 + b"\xff" + b"ok" * 9,
        "c": b"ok" * 9 + b"\xe6\x97",  # ends within a character
        "d": b"\xff",
    }.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    used, left_out = read(tmp_path)
    assert used == {"a.txt": "日本語の文"}
    assert left_out == dict.fromkeys(["b.txt", "c.txt", "d.txt"], "not UTF-8")


def test_parquet(tmp_path):
    Dataset.from_dict({"text": ["x", None, "y"]}).to_parquet(tmp_path / "a.parquet")
    used, left_out = read(tmp_path)
    assert used == {"a.parquet:1": "x", "a.parquet:3": "y"}
    assert left_out == {"a.parquet:2": "NoneType instead of text"}


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_without_it_the_error_says_how_to_leave_them_out(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"text": "\xff"}')
    with pytest.raises(ValueError, match=r"With data\.skip_bad_records=true such records are left"):
        read(tmp_path, skip_bad=False)


def test_the_command_counts_them_by_reason(tmp_path):
    records = [{"text": f"document {n} " * 20} for n in range(60)]
    lines = [json.dumps(record) for record in records] + ["{}", "{}", "nothing"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    command = [
        *(
            sys.executable,
            "-m",
            "data.prepare",
            f"data.files={tmp_path}/*",
            f"data.root={tmp_path}",
        ),
        *("tokenizer.vocab_size=280", "data.validation_bytes=100", "data.processes=1"),
    ]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "record 61 has no column 'text'" in refused.stderr
    counted = subprocess.run(
        [*command, "data.skip_bad_records=true"], capture_output=True, text=True, check=True
    )
    assert "left out    2 without column 'text': a.jsonl:61, a.jsonl:62" in counted.stdout
    assert "left out    1 not JSON: a.jsonl:63" in counted.stdout
