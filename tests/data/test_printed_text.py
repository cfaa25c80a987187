"""`generate.py` prints what a model makes piece by piece: whole characters, and nothing twice."""

import io
import sys
from pathlib import Path

import pytest
import torch

import generate as generate_command
import train as train_command
from data.tokenizer import Tokenizer
from model.sampling import generate
from model.training.checkpoints import latest
from model.training.load import load_model
from tests.commands import SMALL, called
from tests.data.prepared_sets import prepared, write_records

PHRASE = "alpha beta 😀日本\n  end "
"""23 characters; those that are not ASCII have no piece in the vocabulary: they are 10 bytes."""

STEPS = 60


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that knows PHRASE by heart."""
    root = tmp_path_factory.mktemp("phrase")
    write_records(root, [20])
    ascii_only = prepared(root / "ascii", f"{root}/*.jsonl", "tokenizer.vocab_size=288")
    for number in range(4):
        (root / f"{number}.txt").write_text(PHRASE * (30 + number))
    tokenizer = f"tokenizer.path={ascii_only}/tokenizer.model"
    folder = prepared(root / "prepared", f"{root}/*.txt", tokenizer)
    code, _, err = called(
        train_command.main,
        *SMALL,
        "data=prepared",
        "data.files=null",
        f"data.dir={folder}",
        f"run.root={root}",
        "run.name=phrase",
        "model.layers=softmax*2",
        "model.d_model=32",
        "model.ffn_dim=64",
        "data.seq_len=64",
        "trainer.batch_tokens=512",
        f"trainer.tokens={512 * STEPS}",
        "trainer.micro_batch_rows=null",
        "trainer.validate_every=1000",
        "trainer.checkpoint_every=1000",
        "trainer.sample_tokens=0",
        "optimizer=adamw",
        "optimizer.lr=0.01",
    )
    assert code == 0, err
    return root / "phrase"


class Recorder(io.StringIO):
    """Keeps every piece that was printed."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return super().write(text)


def printed(run: Path, count: int) -> list[str]:
    """What the command prints of `count` tokens: prompt, a piece per token, the rest, an end."""
    given = [f"root={run.parent}", "run=phrase", "prompt=alpha", "temperature=0"]
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", recorder)
        patch.setattr(sys, "argv", ["generate.py", *given, f"max_new_tokens={count}"])
        generate_command.main()
    return recorder.pieces[::2]  # print writes its empty end, too


@pytest.fixture(scope="module")
def made(run) -> tuple[Tokenizer, list[int]]:
    """The run's tokenizer, and the tokens that follow the prompt."""
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    model, _ = load_model(latest(run / "checkpoints"), torch.device("cpu"))
    prompt = torch.tensor([[tokenizer.bos_id, *tokenizer.encode("alpha")]])
    ends = {"eos_id": tokenizer.eos_id, "pad_id": tokenizer.pad_id}
    return tokenizer, [int(id) for id in generate(model, prompt, 40, temperature=0, **ends)]


def test_the_model_spells_the_emoji_in_bytes(made):
    tokenizer, ids = made
    assert tokenizer.decode(ids).startswith(PHRASE.removeprefix("alpha"))
    at = next(i for i in range(len(ids)) if "😀" in tokenizer.decode(ids[: i + 1]))
    assert b"".join(map(tokenizer.bytes_of, ids[at - 3 : at + 1])) == "😀".encode()
    assert all(len(tokenizer.bytes_of(id)) == 1 for id in ids[at - 3 : at + 1])


def test_pieces_are_whole_characters_and_join_to_the_decoded_text(run, made):
    tokenizer, ids = made
    prompt, *pieces, rest, end = printed(run, len(ids))
    assert (prompt, end) == ("alpha", "\n")
    assert len(pieces) == len(ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(pieces)
    for count in range(1, len(ids) + 1):  # as much as is certain, at once
        certain = tokenizer.decode(ids[:count]).rstrip("\ufffd")
        assert "".join(pieces[:count]) == certain


def test_a_stop_inside_a_character_tells_so_once(run, made):
    tokenizer, ids = made
    whole = next(i for i in range(len(ids) + 1) if tokenizer.decode(ids[:i]).endswith("😀"))
    for count in range(whole - 4, whole + 1):
        _, *pieces, rest, end = printed(run, count)
        assert "".join(pieces) + rest == tokenizer.decode(ids[:count])
        assert rest == ("\ufffd" if whole - 4 < count < whole else "")
        assert "\ufffd" not in "".join(pieces)
        assert end == "\n"
