"""Texts that tokenizers spoil go through the commands and come back byte for byte.

The texts are those of google/sentencepiece#520, #101, #863, #102 and #215, and their relatives.
"""

import json

import numpy as np
import pytest

from data.index import read_index
from tests.commands import inspected
from tests.data.prepared_sets import prepared, texts_of, windows_of
from tests.data.test_prepare import documents_of

ODD = [
    "a\tb\nc",
    "  two  spaces ",
    "def f(x):\n    if x:\n        return x\n",
    "…①ﬁ",
    "e\u0301",
    "\u00a0",
    "\u200b",
    "\r\n",
    "naïve 😀 日本",
    "▁x",
    "▁",
    " ",
    "\n",
    "\0",
    "\ue000a\ue001\t▁",
    "\ufeffx\ufffd\u2028\x85",
    "x</s>y",
    "<s>hi",
    "<doc>",
    "<pad><unk><0x0A>",
    "</s>",
]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_odd_texts_come_back_from_the_rows_and_end_nowhere_but_at_their_end(tmp_path, model_type):
    plain = [f"plain text number {n} with </s> in it\n" * 3 for n in range(40)]
    texts = [text for pair in zip(ODD, plain, strict=False) for text in pair]
    texts += plain[len(ODD) :]
    with (tmp_path / "a.jsonl").open("w") as file:
        for text in ["", *texts, ""]:
            file.write(json.dumps({"text": text}) + "\n")
    raw = [f"{text} as a file\r\n\t{text}".removeprefix("\ufeff") for text in ODD]
    for number, text in enumerate(raw):  # a byte order mark would be no text here
        (tmp_path / f"b{number:02d}.txt").write_bytes(text.encode())
    given = ["tokenizer.vocab_size=320", f"tokenizer.model_type={model_type}"]
    files = f"[{tmp_path}/a.jsonl,{tmp_path}/b*.txt]"
    folder = prepared(tmp_path / "prepared", files, *given)

    index = read_index(folder)
    rows = inspected(
        "data=prepared",
        f"data.dir={folder}",
        "data.seq_len=32",
        f"trainer.batch_tokens={32 * windows_of(folder, 32)}",
    )
    found = texts_of(rows, folder)
    held_out = documents_of(folder, "validation")
    assert 0 < len(held_out) < 10
    expected = [*texts, *raw]
    assert found == [text for text in expected if text not in held_out]
    assert sorted(found + held_out) == sorted(expected)
    assert sum(index.rejected.counts.values()) == 2  # the empty ones

    shards = [np.fromfile(folder / shard.file, index.dtype) for shard in index.train.shards]
    ends = sum(int((ids == index.eos_id).sum()) for ids in shards)
    assert ends == index.train.documents == len(found)
    assert [id for row in rows for id in row["tokens"]].count(index.eos_id) == ends
