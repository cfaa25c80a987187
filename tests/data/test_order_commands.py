"""An epoch of uneven files through `python -m data.inspect`: every row once, whatever the ranks."""

import json
import re
import sys

import pytest

import data.inspect as inspect_command
from data.index import read_index

ROWS = 36


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """What the command prints about the first step, which holds more than an epoch."""
    number = 0
    for name, count in (("a", 5), ("b", 9), ("c", 2)):
        texts = []
        for _ in range(count):
            texts.append({"text": f"<{number}> </s> naïve 😀\n" + f"line {number}\n" * 8})
            number += 1
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts))
    settings = [
        "data=files",
        f"data.files={tmp_path}/*.jsonl",
        f"data.root={tmp_path}/prepared",
        "data.validation_bytes=100",
        "tokenizer.vocab_size=288",
        "data.seq_len=64",
        f"trainer.batch_tokens={64 * ROWS}",
    ]

    def run(*overrides):
        monkeypatch.setattr(sys, "argv", ["inspect", *settings, *overrides])
        inspect_command.main()
        return capsys.readouterr().out

    run.root = tmp_path / "prepared"
    return run


def test_every_window_and_document_is_read_once_per_epoch_for_any_number_of_ranks(shown):
    printed = {}
    for world in (1, 2, 3):
        ranks = [shown(f"world={world}", f"rank={rank}") for rank in range(world)]
        rows = [row for text in ranks for row in re.split(r"^row ", text, flags=re.M)[1:]]
        assert len(rows) == ROWS
        printed[world] = [row.split(", ", 1)[1] for row in rows]  # without its number on the rank
    assert printed[1] == printed[2] == printed[3]
    first = [row for row in printed[1] if ", epoch 1, " in f", {row}"]
    windows = sorted(int(re.search(r"window (\d+)", row)[1]) for row in first)
    assert windows == list(range(len(first)))
    (folder,) = shown.root.iterdir()
    documents = read_index(folder).train.documents
    text = "".join(first)
    assert text.count("⟨bos⟩") == text.count("⟨eos⟩") == documents
    assert text.count("naïve") <= documents
    # The tokens that predict nothing are the last of each document, and padding.
    ends = len(re.findall(r"⟦⟨eos⟩⟧", text))
    assert documents - len(first) <= ends <= documents
    assert text.count("⟦⟨pad⟩") == 1


def test_control_characters_are_shown_and_colours_only_where_asked(shown):
    plain = shown("row=0")
    assert "\x1b[" not in plain
    colored = shown("row=0", "color=always")
    assert "\x1b[" in colored
    assert "⟦" not in colored
    assert inspect_command._visible("a\x1b[2J\tb\n\x7f") == "a␛[2J\tb\n␡"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rank=1"], "rank=1: with world=1 there are ranks 0 to 0; give another rank"),
        (["rank=3", "world=3"], "rank=3: with world=3 there are ranks 0 to 2"),
        (["world=5"], "world=5: that step has 36 rows, which are shared equally by 1, 2, 3, 4, 6,"),
        (["world=3", "row=12"], "row=12: rank 0 of 3 has rows 0 to 11 in that step"),
    ],
)
def test_ranks_and_rows_that_there_are_not_are_told_by_their_settings(
    shown, monkeypatch, capsys, overrides, message
):
    with pytest.raises(SystemExit):
        shown(*overrides)
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {message}")
