"""Which shapes are compared, and in which order."""

from benchmarks.kernel_cases import (
    CHANNELS,
    LENGTHS,
    OPS,
    TOKENS,
    WIDTHS,
    Case,
    all_cases,
    document_lengths,
    quick_cases,
)


def test_every_call_has_the_same_tokens_and_channels():
    for case in all_cases(OPS, LENGTHS, WIDTHS):
        assert case.rows * case.length == max(TOKENS, case.length)
        assert case.heads * case.width == CHANNELS


def test_the_target_of_gla_is_the_first_case_of_both_selections():
    wanted = Case("gla", rows=2, length=16384, heads=16, width=128)
    assert quick_cases()[0] == wanted
    assert all_cases(OPS, LENGTHS, WIDTHS)[0] == wanted


def test_the_full_selection_has_every_combination_once():
    cases = all_cases(OPS, LENGTHS, WIDTHS)
    assert len(cases) == len(set(cases))
    plain = {(c.op, c.length, c.width) for c in cases if not c.packed}
    assert len(plain) == len(OPS) * len(LENGTHS) * len(WIDTHS)
    assert {(c.op, c.width) for c in cases if c.packed} == {(o, w) for o in OPS for w in WIDTHS}


def test_the_quick_selection_covers_what_the_targets_need():
    cases = quick_cases()
    assert len(cases) == len(set(cases))
    assert {c.op for c in cases} == {"gla", "retnet"}
    assert any(c.packed for c in cases)
    assert any(c.op == "retnet" and c.width == 256 for c in cases)
    assert min(c.length for c in cases) == 2048
    assert len({c.compiled for c in cases}) <= 4  # compilation takes most of the time


def test_a_choice_restricts_the_selection():
    cases = all_cases(["retnet"], [2048], [64])
    assert cases == [Case("retnet", rows=16, length=2048, heads=32, width=64)]


def test_documents_fill_their_rows_with_mixed_lengths():
    rows = document_lengths(16384, 2)
    assert [sum(row) for row in rows] == [16384, 16384]
    assert rows[0] != rows[1]
    assert min(map(len, rows)) > 1
    assert document_lengths(16384, 2) == rows
