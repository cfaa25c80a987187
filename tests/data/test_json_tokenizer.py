"""tokenizer.json files: round trips, special strings as text, cutting, streaming, refusals."""

import json
import random
import sys

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.tokenizer import PROBES, Tokenizer
from tests.data.json_files import END, KINDS, gpt2, write

LITERALS = [END, "<|begin|>", "<|fill|>", "<s>", "</s>", "<unk>", "<0x0A>", "<think>", "<0x"]

any_text = st.lists(
    st.one_of(
        st.sampled_from([*" \t\n\r\0'ab7", "\u2581", "\ue000", "é", "😀", "don't", *LITERALS]),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=40,
).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def path(request, code_text, tmp_path_factory):
    """A file of each kind, with the names of its tokens beside it."""
    make, roles = KINDS[request.param]
    return write(make(code_text), tmp_path_factory.mktemp(request.param), roles)


@pytest.fixture(scope="module")
def loaded(path) -> Tokenizer:
    return Tokenizer.load(path)


def special_ids(path) -> set[int]:
    added = json.loads(path.read_text())["added_tokens"]
    return {token["id"] for token in added if token["special"]}


@settings(max_examples=300, deadline=None)
@given(text=any_text)
@example(text="".join(PROBES))
@example(text="<s<s>></s></</s>s><<unk><0x<0x0A>0A>")
@example(text=END + "   \u2581\u2581\u2581  \n\n\n")
def test_any_text_comes_back_without_special_ids(loaded, path, text):
    ids = loaded.encode(text)
    assert loaded.decode(ids) == text
    assert not special_ids(path) & set(ids)


def test_all_code_points_come_back(loaded):
    text = "".join(chr(c) for c in range(0, sys.maxunicode + 1, 97) if not 0xD800 <= c < 0xE000)
    assert loaded.decode(loaded.encode(text)) == text


def test_tokens_are_those_of_the_library(loaded, path, code_text):
    library = tokenizers.Tokenizer.from_file(str(path))
    text = code_text[:5000] + " é 😀 don't 1234567"
    ids = library.encode(text, add_special_tokens=False).ids
    assert loaded.encode(text) == ids
    assert loaded.decode(ids) == library.decode(ids) == text


def test_stream_joins_to_the_decoded_text(loaded):
    text = "alpha beta 😀日本\n  end \u2581 \ue000 <think></s>"
    ids = loaded.encode(text)
    assert streamed(loaded, ids) == loaded.decode(ids) == text
    decoder = loaded.stream()
    emoji = loaded.encode("a😀")[:-1]
    assert [decoder.push(id) for id in emoji] == ["a"] + [""] * (len(emoji) - 1)
    assert decoder.flush() == "\ufffd"


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_stream_of_arbitrary_ids_equals_decode(loaded, seed):
    ids = random.Random(seed).choices(range(loaded.size), k=30)
    assert streamed(loaded, ids) == loaded.decode(ids)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    decoder = tokenizer.stream()
    return "".join([*(decoder.push(id) for id in ids), decoder.flush()])


def test_a_saved_tokenizer_is_the_same_without_the_file_it_came_from(loaded, path, tmp_path):
    assert loaded.save(tmp_path) == tmp_path / "tokenizer.json"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "special_tokens_map.json",
        "tokenizer.json",
    ]
    again = Tokenizer.load(tmp_path)
    assert (again.fingerprint, again.size) == (loaded.fingerprint, loaded.size)
    assert [again.bos_id, again.eos_id, again.pad_id] == [
        loaded.bos_id,
        loaded.eos_id,
        loaded.pad_id,
    ]
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size()


def test_a_piece_that_the_model_would_make_of_text_is_not_made(code_text, tmp_path):
    make, roles = KINDS["unigram"]
    path = write(make(code_text), tmp_path, roles)
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    loaded = Tokenizer.load(path)
    for text in ("</s>", "<0x0A>"):
        (id,) = library.encode(text).ids
        ids = loaded.encode(text)
        assert id not in ids
        assert loaded.decode(ids) == text


def test_early_files_are_read_that_name_no_type_of_model(made, tmp_path):
    model = json.loads(made.to_str())["model"]
    early = {"merges": [" ".join(pair) for pair in model["merges"]], "vocab": model["vocab"]}
    early |= {"unk_token": "", "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    normalizer = {"type": "Sequence", "normalizers": []}
    path = write(made, tmp_path, {"eos": END}, model=early, normalizer=normalizer)
    text = "def f(x):\n    return 'é' " + END
    made.encode_special_tokens = True
    assert Tokenizer.load(path).encode(text) == made.encode(text).ids
    made.encode_special_tokens = False


# --- settings of the file


@pytest.fixture(scope="module")
def made(code_text):
    return gpt2(code_text)


def test_one_end_token_serves_as_all_three_and_that_is_noted(made, tmp_path):
    loaded = Tokenizer.load(write(made, tmp_path, {"eos": END}))
    assert loaded.bos_id == loaded.eos_id == loaded.pad_id == 0
    assert loaded.notes == (
        f"The tokenizer names no bos and no pad token: its eos token '{END}' serves as bos and "
        "pad, too.",
    )


def test_roles_come_from_settings_before_the_files_beside_it(made, tmp_path):
    path = write(made, tmp_path, {"eos": END, "pad": "<think>"})
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "se", "lstrip": False}, "pad_token": "re"})
    )
    given = Tokenizer.load(path, pad="th")
    library = tokenizers.Tokenizer.from_file(str(path))
    assert [given.bos_id, given.eos_id, given.pad_id] == [
        library.token_to_id(token) for token in ("se", END, "th")
    ]
    assert not {given.bos_id, given.pad_id} & set(given.encode("these serene threshers"))


def test_a_role_makes_a_token_special_and_another_fingerprint(made, tmp_path):
    path = write(made, tmp_path, {"eos": END})
    plain, changed = Tokenizer.load(path), Tokenizer.load(path, pad="<think>")
    assert plain.fingerprint != changed.fingerprint
    assert plain.pad_id != changed.pad_id
    text = "a<think>b"
    assert changed.pad_id in plain.encode(text)
    assert changed.pad_id not in changed.encode(text)
    assert plain.decode(plain.encode(text)) == changed.decode(changed.encode(text)) == text


def test_without_a_named_end_the_special_tokens_are_listed(made, tmp_path):
    path = write(made, tmp_path, {})
    with pytest.raises(ValueError, match="does not say which token ends a document") as error:
        Tokenizer.load(path)
    assert f"special tokens are {END}. Type, for example, 'tokenizer.eos=" in str(error.value)
    with pytest.raises(ValueError, match=r"no token '</s>', which tokenizer\.eos names"):
        Tokenizer.load(path, eos="</s>")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(ValueError, match=r"which tokenizer_config\.json: eos_token names"):
        Tokenizer.load(path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is damaged"):
        Tokenizer.load(path)


def test_what_cuts_or_adds_is_switched_off_and_noted(made, tmp_path):
    library = tokenizers.Tokenizer.from_str(made.to_str())
    library.enable_truncation(5)
    library.enable_padding(length=50)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )
    model = json.loads(library.to_str())["model"] | {"dropout": 0.5}
    loaded = Tokenizer.load(write(library, tmp_path, {"eos": END}, model=model))
    text = "def f(x): return x\n" * 50
    assert loaded.encode(text) == made.encode(text).ids
    assert loaded.notes[-1] == "Switched off in the tokenizer: truncation, padding, dropout."


def test_ids_may_have_holes_and_go_beyond_16_bits(made, tmp_path):
    contents = json.loads(made.to_str())
    del contents["added_tokens"][1:]
    contents["model"]["vocab"]["qzq"] = 70_000
    contents["model"]["vocab"]["qz"] = 69_998
    contents["model"]["merges"] += [["q", "z"], ["qz", "q"]]
    loaded = Tokenizer.load(write(made, tmp_path, {"eos": END}, **contents))
    assert loaded.size == 70_001
    assert loaded.bytes_of(69_999) == b""
    assert loaded.encode("qzqqz") == [70_000, 69_998]
    assert loaded.decode([70_000, 69_999, 69_998]) == "qzqqz"
    with pytest.raises(ValueError, match="Token id 70001 is not one of"):
        loaded.decode([70_001])


def test_an_id_that_the_library_does_not_give_is_refused(made, tmp_path):
    contents = json.loads(made.to_str())
    contents["added_tokens"][-1]["id"] = 70_000
    with pytest.raises(ValueError, match="added token '   ' has id 70000 in the file, but 601"):
        Tokenizer.load(write(made, tmp_path, {"eos": END}, **contents))


BERT = {
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "a": 1},
    },
}
PREFIX = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
NAMED = {"id": 600, "single_word": False, "lstrip": True, "rstrip": False, "normalized": False}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": {"type": "NFC"}}, "its normalizer NFC rewrites text"),
        ({"normalizer": {"type": "Lowercase"}}, "its normalizer Lowercase rewrites text"),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend"}]}},
            "its normalizer Prepend puts a space before the text",
        ),
        ({"pre_tokenizer": PREFIX}, "its pre_tokenizer ByteLevel puts a space before the text"),
        (
            {"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"}},
            "its pre_tokenizer Metaspace puts a space before the text",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre_tokenizer Whitespace drops spaces"),
        (
            {"pre_tokenizer": {"type": "Split", "behavior": "Removed"}},
            r"its pre_tokenizer Split removes text \(behavior Removed\)",
        ),
        ({"pre_tokenizer": None}, "ByteLevel is in only one of"),
        ({"decoder": None}, "it has no decoder"),
        ({"decoder": {"type": "CTC"}}, "its decoder CTC is none of ByteLevel"),
        (BERT, "its model WordPiece has no piece for every text; its normalizer BertNormalizer"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}},
            "255 of the 256 bytes have no piece",
        ),
        (
            {"added_tokens": [NAMED | {"content": "<x>", "special": False}]},
            r"added token '<x>' takes in or depends on what stands around it \(lstrip\)",
        ),
        (
            {
                "added_tokens": [
                    NAMED | {"content": "Ġ", "id": 221, "special": False, "lstrip": False}
                ]
            },
            "added token 'Ġ' is a piece of the model, too",
        ),
    ],
)
def test_what_changes_text_is_refused_by_name(made, tmp_path, changes, message):
    roles = {"eos": "a" if "model" in changes else END}
    path = write(made, tmp_path, roles, **changes)
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.load(path)
    assert str(path) in str(error.value)
    assert "tokenizer=sentencepiece_32k" in str(error.value)


def test_an_ordinary_character_cannot_be_a_special_token(made, tmp_path):
    with pytest.raises(ValueError, match="text can produce its special token 'a'"):
        Tokenizer.load(write(made, tmp_path, {"eos": "a"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "BPE", "vocab": 3, "merges": []}},
        {"model": {"type": "Unigram", "unk_id": 5}},
        {"model": 1},
        {"decoder": {"type": "Sequence"}},
        {"normalizer": [1]},
        {"added_tokens": [{"content": "x"}]},
    ],
)
def test_files_of_another_structure_are_named(made, tmp_path, changes):
    path = write(made, tmp_path, {"eos": END}, **changes)
    with pytest.raises(
        ValueError, match=r"tokenizer\.json is not a Hugging Face tokenizer\.json: "
    ):
        Tokenizer.load(path)


@pytest.mark.parametrize("contents", [b"{}", b"[", b'{"a": "\xff"}', b"[1]", b'{"model": {}}'])
def test_files_that_are_no_tokenizer_are_named(tmp_path, contents):
    (tmp_path / "tokenizer.json").write_bytes(contents)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a Hugging Face tokenizer\.json"):
        Tokenizer.load(tmp_path)
