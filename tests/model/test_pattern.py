"""The layer pattern's grammar and its errors."""

import pytest

from model.pattern import MAX_LAYERS, expand

NAMES = ("gla", "retnet", "softmax", "window")


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("gla", ["gla"]),
        ("gla*3 softmax", ["gla", "gla", "gla", "softmax"]),
        ("(gla retnet)*2", ["gla", "retnet", "gla", "retnet"]),
        ("((gla)*2 softmax)*2", ["gla", "gla", "softmax"] * 2),
        ("gla*3 window+gla softmax", ["gla", "gla", "gla", "window+gla", "softmax"]),
        ("window+gla*2", ["window+gla", "window+gla"]),
        ("  ( gla )*1\tsoftmax\n", ["gla", "softmax"]),
        ("(gla)(softmax)", ["gla", "softmax"]),
    ],
)
def test_a_pattern_expands_into_its_layers(pattern, layers):
    assert ["+".join(branches) for branches in expand(pattern, NAMES)] == layers


@pytest.mark.parametrize(
    ("pattern", "reason", "column"),
    [
        ("gla glaa", "no mixer 'glaa' (did you mean 'gla'?)", 4),
        ("gla foo+gla", "no mixer 'foo'", 4),
        ("(gla softmax", "never closed", 0),
        ("gla)", "unexpected ')'", 3),
        ("gla*0", "count of at least 1", 4),
        ("gla*", "count of at least 1", 4),
        ("gla*x", "count of at least 1", 4),
        ("gla*2*3", "cannot be repeated", 5),
        ("3 gla", "expected a mixer name", 0),
        ("()*2", "group is empty", 0),
        ("gla+", "mixer name after '+'", 4),
        ("gla+(softmax)", "mixer name after '+'", 4),
        ("(gla)+softmax", "joins mixer names", 5),
        ("gla, softmax", "unexpected ','", 3),
        ("gla\\softmax", "unexpected", 3),
        (f"gla*{10**12}", f"more than {MAX_LAYERS} layers", 4),
        (f"(gla*{MAX_LAYERS})*{MAX_LAYERS}", f"more than {MAX_LAYERS} layers", 11),
    ],
)
def test_an_error_points_at_the_bad_token(pattern, reason, column):
    with pytest.raises(ValueError) as error:
        expand(pattern, NAMES)
    message, shown, pointer = str(error.value).rsplit("\n", 2)
    assert reason in message
    assert "model.layers" in message
    assert shown == f"    {pattern}"
    assert pointer.index("^") - 4 == column


@pytest.mark.parametrize("pattern", ["", "  ", "\n"])
def test_an_empty_pattern_says_what_to_write(pattern):
    with pytest.raises(ValueError, match=r"names no layer.*mixers: gla, retnet"):
        expand(pattern, NAMES)
