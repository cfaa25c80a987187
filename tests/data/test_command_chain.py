"""Text files to a scored model: each command is a process of its own, in the C locale."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.index import read_index
from tests.commands import SMALL, losses
from tests.data.prepared_sets import texts_of, windows_of

ROOT = Path(__file__).parents[2]


def printed(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"LC_ALL": "C", "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8")


@pytest.mark.long
def test_odd_text_goes_from_files_to_rows_and_scores(tmp_path):
    texts = [f"<{n}>\tnaïve 😀日本 ▁x </s>\r\n" * (2 + n % 5) for n in range(24)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02d}.txt").write_bytes(text.encode())
    files = [f"data.files={tmp_path}/*.txt", f"data.root={tmp_path}/prepared"]
    sizes = ["data.seq_len=32", "data.validation_bytes=100", "tokenizer.vocab_size=290"]
    out = printed("-m", "data.prepare", "data=files", *files, *sizes)
    (folder,) = (tmp_path / "prepared").iterdir()
    assert str(folder) in out

    windows = windows_of(folder, 32)
    run = [f"run.root={tmp_path}", "run.name=odd", f"trainer.batch_tokens={32 * windows}"]
    long = [f"trainer.tokens={32 * windows * 2}", "data=prepared", f"data.dir={folder}"]
    printed("train.py", *SMALL, *long, *run, "data.files=null")
    assert list(losses(tmp_path / "odd")) == [1, 2]

    of_run = ["run=odd", f"root={tmp_path}"]
    lines = printed("-m", "data.inspect", *of_run, "step=2", "format=json").splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["epoch"] for row in rows} == {2}
    found = texts_of(rows, folder)
    assert found == [text for text in texts if text in found]
    assert len(found) == 24 - read_index(folder).validation.documents > 15
    prompt = "<5>\tnaïve 😀"
    made = printed("generate.py", *of_run, f"prompt={prompt}", "max_new_tokens=30")
    assert made.startswith(prompt)
    assert len(made) > len(prompt) + 2
    assert "nats per token" in printed("eval.py", *of_run)
