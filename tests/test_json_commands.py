"""Every command with a tokenizer.json that was brought along."""

import json
import shutil

import numpy as np
import pytest

import data.inspect as inspect_command
import data.prepare as prepare_command
import eval as eval_command
import generate as generate_command
import train as train_command
from data.binding import bind, tokenizer_of
from data.index import files_of, read_index
from data.prepare import prepare
from data.sets import Prepared
from data.tokenizer import Tokenizer
from tests.commands import SMALL, called
from tests.composing import composed
from tests.data.json_files import END, KINDS, gpt2, write

TEXT = "item {0} <think> of {1}</s> don't\n"
SMALL_JSON = [key for key in SMALL if not key.startswith("tokenizer.")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two corpora, `web` and `code`, and a tokenizer in `gpt2`."""
    root = tmp_path_factory.mktemp("json")
    for name in ("web", "code"):
        (root / name).mkdir()
        for part in range(2):
            texts = [
                "".join(TEXT.format(name, i * j % 97) for j in range(8)) + END for i in range(20)
            ]
            lines = "".join(json.dumps({"text": f"{part} {text}"}) + "\n" for text in texts)
            (root / name / f"{part}.jsonl").write_text(lines)
    write(gpt2(TEXT * 100), root / "gpt2", {"eos": END})
    return root


@pytest.fixture(autouse=True)
def histogram(monkeypatch):
    """Drawing takes longer than all else about a small data set."""
    monkeypatch.setattr("data.merge.draw_lengths", lambda folder, index, path: path.touch())


def source(root, name, at="prepared"):
    return [
        f"data.files={root}/{name}/*.jsonl",
        f"data.root={root}/{at}",
        "data.seq_len=32",
        "data.validation_bytes=2000",
    ]


def given(root):
    return ["tokenizer=hf_json", f"tokenizer.path={root}/gpt2/tokenizer.json"]


def test_parts_make_the_data_set_of_one_process(root):
    options = [*source(root, "web", "one"), *given(root)]
    code, _, err = called(prepare_command.main, *options)
    assert code == 0, err
    assert err.count("note: The tokenizer names no bos and no pad token") == 1
    parts = [*source(root, "web", "parts"), "tokenizer=hf_json", f"tokenizer.path={root}/gpt2"]
    for part in ("0/2", "1/2", "0/2", "1/2"):
        assert called(prepare_command.main, *parts, f"shard={part}")[0] == 0
    assert called(prepare_command.main, *parts, "merge=true")[0] == 0
    (one,), (several,) = (root / "one").iterdir(), (root / "parts").iterdir()
    assert one.name == several.name
    indexes = [read_index(folder) for folder in (one, several)]
    assert {path.name for path in several.iterdir()} == files_of(indexes[1])
    assert {"tokenizer.json", "special_tokens_map.json"} < files_of(indexes[1])
    streams = []
    for folder, index in zip((one, several), indexes, strict=True):
        assert index.tokenizer_kind == "hf_json"
        assert index.bos_id == index.eos_id == index.pad_id == 0
        shards = [np.fromfile(folder / s.file, index.dtype) for s in index.train.shards]
        streams.append(np.concatenate(shards).tolist())
    assert streams[0] == streams[1]
    index = indexes[0]
    assert streams[0].count(index.eos_id) == 2 * index.train.documents
    # The entropy counts the ends of documents although their id is that of the beginnings.
    held_out = np.concatenate([np.fromfile(one / s.file, "<u2") for s in index.validation.shards])
    _, counts = np.unique(held_out, return_counts=True)
    counts[0] -= index.validation.documents
    shares = counts / counts.sum()
    assert index.validation.unigram_nats_per_token == pytest.approx(-(shares @ np.log(shares)))


def test_a_run_from_training_to_text(root, tmp_path):
    run = [f"run.root={tmp_path}", "run.name=run", *SMALL_JSON, *source(root, "web"), *given(root)]
    run += ["trainer.tokens=256"]
    code, out, err = called(train_command.main, *run)
    assert code == 0, err
    code, out, err = called(train_command.main, *run)
    assert code == 0, err
    saved = Tokenizer.load(root / "gpt2")
    assert tokenizer_of(tmp_path / "run").fingerprint == saved.fingerprint
    at = [f"root={tmp_path}", "run=run"]
    code, out, err = called(generate_command.main, *at, "prompt=x <think></s>é", "max_new_tokens=5")
    assert code == 0, err
    assert out.startswith("x <think></s>é")
    code, out, err = called(eval_command.main, *at)
    assert code == 0, err
    assert "nats per token" in out
    code, out, err = called(inspect_command.main, *at, "step=1", "color=never")
    assert code == 0, err
    assert "⟨bos=eos⟩" in out
    assert "<think> of" in out
    (tmp_path / "run" / "special_tokens_map.json").write_text("{}")
    code, _, err = called(generate_command.main, *at)
    assert code == 1
    assert "not the hf_json tokenizer that the run was trained with. Copy it again: cp" in err
    assert err.rstrip().endswith(f"special_tokens_map.json {tmp_path}/run")


def test_a_second_source_takes_the_tokenizer_of_the_first(root, tmp_path):
    assert called(prepare_command.main, *source(root, "web", "mixed"), *given(root))[0] == 0
    (web,) = (root / "mixed").iterdir()
    again = ["tokenizer=hf_json", f"tokenizer.path={web}/tokenizer.json"]
    assert called(prepare_command.main, *source(root, "code", "mixed"), *again)[0] == 0
    (code_set,) = set((root / "mixed").iterdir()) - {web}
    run = [f"run.root={tmp_path}", "run.name=run", *SMALL_JSON, "trainer.tokens=256"]
    mixture = f"data.sources={{web:{{path:{web}}},code:{{path:{code_set}}}}}"
    code, _, err = called(train_command.main, *run, "data=mixture", mixture)
    assert code == 0, err

    other = ["tokenizer.vocab_size=300"]
    assert called(prepare_command.main, *source(root, "code", "other"), *other)[0] == 0
    (alien,) = (root / "other").iterdir()
    mixture = f"data.sources={{web:{{path:{web}}},code:{{path:{alien}}}}}"
    code, _, err = called(train_command.main, *run, "run.name=b", "data=mixture", mixture)
    assert code == 1
    assert "different tokenizers, hf_json " in err
    assert " and sentencepiece " in err
    assert f"tokenizer=hf_json tokenizer.path={web}/tokenizer.json" in err

    init = ["run.name=c", f"run.init_from={tmp_path}/run", *source(root, "code", "other"), *other]
    code, _, err = called(train_command.main, *run, *init)
    assert code == 1
    assert f"belong to its tokenizer {tmp_path}/run/tokenizer.json (hf_json, " in err
    assert f"tokenizer=hf_json tokenizer.path={tmp_path}/run/tokenizer.json" in err


def test_a_forced_change_of_kind_leaves_one_tokenizer(root, tmp_path):
    def sets(settings):
        made = composed(*source(root, "web", "kinds"), *settings)
        folder = prepare(made.data, made.tokenizer, progress=False)
        return {"": Prepared(folder, read_index(folder))}

    json_set, model_set = sets(given(root)), sets(["tokenizer.vocab_size=300"])
    bind(tmp_path, json_set)
    with pytest.raises(ValueError, match=r"tokenizer: saved hf_json \w+, given sentencepiece \w+"):
        bind(tmp_path, model_set)
    bind(tmp_path, model_set, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.json", "tokenizer.model"]
    assert tokenizer_of(tmp_path).kind == "sentencepiece"
    bind(tmp_path, json_set, force=True)
    assert tokenizer_of(tmp_path).kind == "hf_json"
    assert not (tmp_path / "tokenizer.model").exists()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["tokenizer=hf_json"], "tokenizer.path"),
        (["tokenizer.kind=hf_json"], "tokenizer.kind=hf_json needs a file: tokenizer.path=FOLDER"),
        (
            ["tokenizer=hf_json", "tokenizer.path=ROOT/gpt2", "tokenizer.vocab_size=500"],
            "tokenizer.vocab_size=500: that is trained already in",
        ),
        (
            ["tokenizer.path=ROOT/gpt2/tokenizer.json"],
            "is a tokenizer.json, but tokenizer.kind=sentencepiece. Type tokenizer=hf_json "
            "tokenizer.path=ROOT/gpt2/tokenizer.json",
        ),
        (["tokenizer.eos=x"], "tokenizer.eos=x: a sentencepiece model has its own"),
        (["tokenizer.model_type=null"], "a sentencepiece model needs a value"),
        (
            ["tokenizer=hf_json", "tokenizer.path=ROOT/web"],
            "There is no tokenizer file ROOT/web/tokenizer.json",
        ),
    ],
)
def test_a_mistake_ends_with_one_error_before_any_work(root, typed, message):
    typed = [key.replace("ROOT", str(root)) for key in typed]
    code, _, err = called(prepare_command.main, *source(root, "web", "mistakes"), *typed)
    assert code == 1
    assert err.count("error:") == 1
    assert message.replace("ROOT", str(root)) in err
    assert "Traceback" not in err
    assert not (root / "mistakes").exists()


def test_other_roles_are_another_data_set(root):
    shutil.copytree(root / "gpt2", root / "roles")
    for pad in ("null", "<think>"):
        typed = ["tokenizer=hf_json", f"tokenizer.path={root}/roles", f"tokenizer.pad='{pad}'"]
        typed[-1] = "tokenizer.pad=null" if pad == "null" else typed[-1]
        assert called(prepare_command.main, *source(root, "web", "pads"), *typed)[0] == 0
    indexes = [read_index(folder) for folder in (root / "pads").iterdir()]
    assert len({index.tokenizer_fingerprint for index in indexes}) == 2
    assert sorted(index.pad_id for index in indexes)[0] == 0


def test_more_ids_than_16_bits_are_stored_in_32(root):
    contents = json.loads(KINDS["gpt2"][0](TEXT * 100).to_str())
    del contents["added_tokens"][1:]
    contents["model"]["vocab"]["zzq"] = 70_000
    write(gpt2(TEXT * 100), root / "large", {"eos": END}, **contents)
    typed = ["tokenizer=hf_json", f"tokenizer.path={root}/large"]
    assert called(prepare_command.main, *source(root, "web", "wide"), *typed)[0] == 0
    (folder,) = (root / "wide").iterdir()
    index = read_index(folder)
    assert (index.dtype, index.vocab_size) == ("uint32", 70_001)
