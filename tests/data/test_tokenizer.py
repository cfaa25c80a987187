"""Tokenizer: exact round trips, special ids out of reach of text, cutting and streaming."""

import io
import math
import random
import sys

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from data.cutting import PART_CHARACTERS
from data.marker import ESCAPE, MARKER
from data.tokenizer import Tokenizer

PROBES = [
    "a\tb\nc",
    "  two  spaces ",
    "def f(x):\n    if x:\n        return x\n",
    "…①ﬁ",
    "e\u0301",
    "\u00a0",
    "\u200b",
    "\r\n",
    "naïve 😀 日本",
    "",
    " ",
    "▁x",
    "▁",
    "a▁ ▁▁ b",
    "\ue000",
    "\ue000a\ue000b▁\ue000",
    "\0",
    "a\0b\0",
    "\u2585",
    "\ufeffx",
    "\ufffd",
    "\x85\u2028\u2029",
    "\U0010ffff\ud7ff\ue001",
    "\t\ue001\ue000b\t",
    "x</s>y",
    "<s>hi",
    "<doc>",
    "<pad>",
    "<unk>",
    "<0x0A>",
]

any_text = st.text(
    st.one_of(
        st.sampled_from([*" \t\n\r\0\ue001", MARKER, ESCAPE, "a", "b", "é", "😀", "\u2585"]),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)


@pytest.mark.parametrize("text", PROBES)
def test_text_comes_back_exactly(any_tokenizer, text):
    assert any_tokenizer.decode(any_tokenizer.encode(text)) == text


@settings(max_examples=200, deadline=None)
@given(text=any_text)
def test_any_unicode_text_comes_back_exactly(any_tokenizer, text):
    assert any_tokenizer.decode(any_tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", PROBES)
def test_text_never_yields_special_ids(any_tokenizer, text):
    special = {any_tokenizer.bos_id, any_tokenizer.eos_id, any_tokenizer.pad_id, 0}
    assert len(special) == 4
    assert not special & set(any_tokenizer.encode(text))


def test_indentation_and_line_ends_are_single_tokens(tokenizer):
    assert len(tokenizer.encode("        ")) == 1
    assert len(tokenizer.encode(":\n")) == 1


def test_indentation_by_tabs_is_learned(tokenizer_config):
    text = "all:\n\tcc -o x x.c\n\t\techo done\n\t\t\tx\n" * 50
    tokenizer = Tokenizer.train([text], tokenizer_config(vocab_size=300))
    assert len(tokenizer.encode("\n\t\t\t")) == 1
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["a\tb", "a\ue001\t\t"])
def test_tabs_come_back_from_a_model_that_never_saw_one(tokenizer_config, text):
    config = tokenizer_config(vocab_size=300)
    tokenizer = Tokenizer.train(["some text without the character, " * 9 + "and\nmore"], config)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("\t")) == 1


@pytest.mark.parametrize("text", ["a b", " ", "▁ ▁", "  two  spaces \n"])
def test_spaces_come_back_from_a_model_that_never_saw_one(tokenizer_config, text):
    tokenizer = Tokenizer.train(["no\nspace\nanywhere\n" * 9], tokenizer_config(vocab_size=280))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.flush()]) == text


def test_digits_are_split(tokenizer):
    assert len(tokenizer.encode("2026")) == 4


def test_lone_surrogates_are_refused_with_their_place(tokenizer):
    with pytest.raises(ValueError, match=r"lone surrogate U\+DCFF at character 2"):
        tokenizer.encode("ab\udcff")


def test_special_ids_are_dropped_in_decoding(tokenizer):
    ids = tokenizer.encode("a b")
    framed = [tokenizer.bos_id, *ids, tokenizer.pad_id, 0, tokenizer.eos_id]
    assert tokenizer.decode(framed) == "a b"


@pytest.mark.parametrize("bad", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(tokenizer, bad):
    with pytest.raises(ValueError, match=f"Token id {bad} is not one of"):
        tokenizer.decode([5, bad])


def test_same_text_and_settings_train_the_same_model(tokenizer_config, code_text):
    config = tokenizer_config(vocab_size=400)
    first, second = (Tokenizer.train([code_text[:20000]], config) for _ in range(2))
    assert first.model == second.model
    assert first.fingerprint == second.fingerprint


def test_saved_tokenizer_loads_again(tokenizer, tmp_path):
    assert tokenizer.save(tmp_path) == tmp_path / "tokenizer.model"
    loaded = Tokenizer.load(tmp_path / "tokenizer.model")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode("x = 1") == tokenizer.encode("x = 1")


# --- cutting long texts


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_cut_encoding_equals_whole_encoding(tokenizer, code_text, limit):
    text = code_text[:20_000]
    parts = tokenizer.parts(text, limit)
    assert tokenizer.unescape("".join(parts)) == text
    assert len(parts) > 20_000 / (limit + 60)
    assert tokenizer.encode(text, limit=limit) == tokenizer.encode(text, limit=len(text))


@pytest.mark.parametrize("limit", [1, 7, 100, PART_CHARACTERS])
def test_cut_unigram_encoding_is_as_likely_as_the_whole_one(unigram_tokenizer, code_text, limit):
    """Scores in float64: cutting loses nothing, where sentencepiece's float32 sums do."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=unigram_tokenizer.model)
    whole, cut = (
        math.fsum(map(processor.get_score, unigram_tokenizer.encode(code_text[:20_000], limit=n)))
        for n in (20_000, limit)
    )
    assert cut >= whole - 1e-9 * abs(whole)


@settings(max_examples=200, deadline=None)
@given(text=any_text, limit=st.integers(1, 5))
def test_cutting_never_changes_the_tokens_of_any_text(tokenizer, text, limit):
    assert tokenizer.encode(text, limit=limit) == tokenizer.encode(text, limit=1000)


def test_cutting_at_arbitrary_points_would_change_tokens(tokenizer):
    """The rule matters: cutting a word anywhere gives other tokens."""
    whole = tokenizer.encode("self")
    assert whole != tokenizer.encode("se") + tokenizer.encode("lf")
    assert tokenizer.parts("self", limit=2) == ["self"]


def test_text_without_a_safe_point_stays_whole(tokenizer):
    assert tokenizer.parts(" " * 500, limit=10) == [" " * 500]


# --- streaming


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = tokenizer.stream()
    return [*(decoder.push(id) for id in ids), decoder.flush()]


def test_stream_joins_to_the_decoded_text(any_tokenizer):
    text = "alpha beta 😀日本\n  end ▁ \ue000"
    ids = any_tokenizer.encode(text)
    pieces = streamed(any_tokenizer, ids)
    assert "".join(pieces) == any_tokenizer.decode(ids) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_incomplete_character_is_held_back_and_flushed_once(tokenizer):
    ids = tokenizer.encode("a😀")
    assert len(ids) == 5
    decoder = tokenizer.stream()
    assert [decoder.push(id) for id in ids[:3]] == ["a", "", ""]
    assert decoder.flush() == tokenizer.decode(ids[:3])[1:] == "\ufffd"
    assert decoder.flush() == ""
    assert decoder.push(ids[0]) == "a"


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_stream_of_arbitrary_ids_equals_decode(tokenizer, seed):
    """Also where the bytes are no UTF-8 and escapes are malformed, as a model may produce."""
    source = random.Random(seed)
    escape = tokenizer.encode(ESCAPE)[:3] + tokenizer.encode("a")
    ids = [
        source.choice([source.randrange(tokenizer.size), source.randrange(4, 260), *escape])
        for _ in range(30)
    ]
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


# --- vocabulary errors


def test_too_large_vocabulary_names_the_largest_that_works(tokenizer_config):
    for model_type in ("bpe", "unigram"):
        blocks = ["hello world\n this is a short text"] * 3
        with pytest.raises(ValueError, match="largest possible value is") as error:
            Tokenizer.train(blocks, tokenizer_config(model_type=model_type))
        largest = int(str(error.value).split("largest possible value is ")[1].split(".")[0])
        assert f"Type tokenizer.vocab_size={largest}" in str(error.value)
        config = tokenizer_config(model_type=model_type, vocab_size=largest)
        assert Tokenizer.train(blocks, config).size == largest


@pytest.mark.parametrize("text", ["\n\n", "\r\n" * 20, "\0\0", "▁▁", "\ue000"])
def test_text_without_anything_to_learn_is_refused_in_words(tokenizer_config, text):
    with pytest.raises(ValueError, match=r"nothing that a vocabulary .* tokenizer\.path=FILE"):
        Tokenizer.train([text], tokenizer_config(vocab_size=300))


def test_too_small_vocabulary_names_the_smallest_that_works(tokenizer_config):
    blocks = ["hello world, this is a short text"] * 3
    with pytest.raises(ValueError, match="is too small") as error:
        Tokenizer.train(blocks, tokenizer_config(vocab_size=261))
    smallest = int(str(error.value).split("Type tokenizer.vocab_size=")[1].split(" ")[0])
    config = tokenizer_config(vocab_size=smallest)
    assert Tokenizer.train(blocks, config).size == smallest


# --- loaded models


def foreign_model(**changes) -> bytes:
    output = io.BytesIO()
    settings = {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "byte_fallback": True,
        "bos_id": 1,
        "eos_id": 2,
        "pad_id": 3,
        "vocab_size": 285,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world this is text"] * 5),
        model_writer=output,
        model_type="bpe",
        minloglevel=2,
        **(settings | changes),
    )
    return output.getvalue()


def test_lossless_foreign_model_is_accepted(tmp_path):
    (tmp_path / "m.model").write_bytes(foreign_model())
    tokenizer = Tokenizer.load(tmp_path / "m.model")
    assert tokenizer.decode(tokenizer.encode("  ▁hello\tx")) == "  ▁hello\tx"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_dummy_prefix": True}, "changes text"),
        ({"remove_extra_whitespaces": True}, "changes text"),
        ({"normalization_rule_name": "nmt_nfkc"}, "changes text"),
        ({"byte_fallback": False, "vocab_size": 28}, "changes text"),
        ({"pad_id": -1}, "has no pad id"),
        ({"user_defined_symbols": ["</s>"]}, "has no eos id, or one that text can produce"),
    ],
)
def test_unsuitable_foreign_model_is_refused(tmp_path, changes, message):
    path = tmp_path / "m.model"
    path.write_bytes(foreign_model(**changes))
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.load(path)
    assert str(path) in str(error.value)


def test_missing_and_damaged_model_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no tokenizer file .*none\.model"):
        Tokenizer.load(tmp_path / "none.model")
    (tmp_path / "bad.model").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"bad\.model is not a sentencepiece model"):
        Tokenizer.load(tmp_path / "bad.model")


def test_all_code_points_have_bytes(tokenizer):
    text = "".join(chr(c) for c in range(0, sys.maxunicode + 1, 97) if not 0xD800 <= c < 0xE000)
    assert tokenizer.decode(tokenizer.encode(text)) == text
