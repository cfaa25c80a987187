"""Braid, FLA and softmax attention are asked for the same computation."""

from itertools import pairwise

import pytest
import torch

from benchmarks.kernel_calls import make_calls, make_inputs
from benchmarks.kernel_cases import OPS, Case
from kernels import linear_attention
from kernels.problems import relative_error


def one_document_at_a_time(q, k, v, g=None, beta=None, *, cu_seqlens=None, normalize=False):
    """What FLA's operators promise: documents in one row, scale D^-1/2, [outputs, state]."""
    assert not normalize
    borders = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    assert len(q) == 1 or cu_seqlens is None
    outputs = []
    for start, end in pairwise(borders):
        parts = (x[:, start:end] for x in (q, k, v))
        gates = (None if x is None else x[:, start:end].float() for x in (g, beta))
        outputs.append(linear_attention(*parts, *gates, scale=q.shape[-1] ** -0.5)[0])
    return torch.cat(outputs, 1), None


def retention(q, k, v, **options):
    g = torch.log1p(-(2.0 ** (-5 - torch.arange(q.shape[2])))).expand(q.shape[:3])
    return one_document_at_a_time(q, k, v, g, **options)


FLA = dict.fromkeys(OPS, one_document_at_a_time) | {"retnet": retention}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_outputs_and_gradients_equal_those_of_the_same_operator_elsewhere(op, packed):
    case = Case(op, rows=2, length=300, heads=2, width=16, packed=packed)
    calls = make_calls(case, make_inputs(case, "cpu"), FLA, backend="torch")
    ours, theirs = calls["Braid"].training(), calls["FLA"].training()
    gates = {"gla": 1, "simple": 1, "deltanet": 1, "gated_deltanet": 2, "kda": 2}
    assert len(ours) == len(theirs) == 4 + gates.get(op, 0)
    for a, b in zip(ours, theirs, strict=True):
        assert relative_error(a, b) < 1e-2
    assert torch.equal(calls["Braid"].forward()[0], ours[0])


def test_softmax_attention_is_causal_and_has_the_same_layout():
    case = Case("linear", rows=2, length=32, heads=2, width=16)
    inputs = make_inputs(case, "cpu")
    out, *gradients = make_calls(case, inputs, {})["flash"].training()
    assert torch.allclose(out[:, 0].float(), inputs.v[:, 0].float())
    assert out.shape == inputs.v.shape
    assert [g.shape for g in gradients] == [inputs.v.shape] * 3


def test_packed_rows_have_documents_that_end_with_their_row():
    case = Case("gla", rows=2, length=500, heads=2, width=16, packed=True)
    inputs = make_inputs(case, "cpu")
    borders = inputs.borders.tolist()
    assert borders[0] == 0
    assert borders[-1] == 1000
    assert 500 in borders
    changes = (inputs.segments.diff() != 0).nonzero()
    starts = {int(row) * 500 + int(column) + 1 for row, column in changes} | {0, 500}
    assert starts == set(borders[:-1])
    assert inputs.longest == max(b - a for a, b in pairwise(borders))


def test_fla_is_left_out_where_the_case_says_so():
    case = Case("gla", rows=1, length=64, heads=2, width=16, fla=False)
    assert set(make_calls(case, make_inputs(case, "cpu"), FLA)) == {"Braid", "flash", "cudnn"}
