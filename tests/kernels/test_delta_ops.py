"""The delta rule's kernels as PyTorch operators, interpreted: rules, documents, states, sizes."""

from dataclasses import replace

import pytest
import torch
from delta_oracle import delta_attention, delta_recurrence, delta_results, make_delta_problem
from kernel_oracle import relative_error

from kernels import LinearState
from kernels.triton.delta_ops import delta_backward, delta_forward


@pytest.mark.parametrize("family", ["head", "channel"])
def test_the_operators_keep_pytorchs_rules(family: str) -> None:
    p = make_delta_problem(family, length=20, segments=True)
    p = replace(p, **{name: x.clone().requires_grad_() for name, x in p.leaves().items()})
    options = (1.0, family == "head", 4)
    inputs = (p.q, p.k, p.v, p.decay, p.beta, p.segments, p.S, p.state_segment, *options)
    torch.library.opcheck(delta_forward, inputs)
    inputs = [x.detach() if torch.is_tensor(x) else x for x in inputs]
    q, k, v, decay, beta, segments, _, first, *options = inputs
    o, final, *kept = delta_forward(*inputs)
    arguments = (o, final, q, k, v, decay, beta, segments, first, *kept, *options, True)
    torch.library.opcheck(delta_backward, arguments)


def test_blocks_compile_as_one_graph() -> None:
    p = make_delta_problem("scalar", length=20)
    options = {"scale": 1.0, "segments": None, "state": None, "chunk_size": None}

    def block(q, k, v, beta):
        o, state = delta_attention(q, k, v, p.decay, beta.sigmoid(), **options)
        return o.sin().sum() + state.S.sum()

    leaves = [x.clone().requires_grad_() for x in (p.q, p.k, p.v, p.beta)]
    traced = torch.compile(block, fullgraph=True, backend="eager")(*leaves)
    expected = torch.autograd.grad(block(*leaves), leaves)
    for x, y in zip(torch.autograd.grad(traced, leaves), expected, strict=True):
        assert torch.equal(x, y)


def test_reruns_are_bit_identical_and_chunks_of_any_size_agree() -> None:
    p = make_delta_problem("scalar", length=200, segments=True)
    p = replace(p, segments=3 + (torch.arange(200) >= 150).long()[None])
    first, again = (delta_results(delta_attention, p) for _ in range(2))
    one_tile, two = (delta_results(delta_attention, p, chunk_size=size) for size in (1, 128))
    for name, x in first.items():
        assert torch.equal(x, again[name]), name
        assert relative_error(one_tile[name], x) <= 1e-5, name
        assert relative_error(two[name], x) <= 1e-5, name


@pytest.mark.parametrize("family", ["none", "channel"])
def test_a_document_is_bitwise_unchanged_when_its_neighbour_changes(family: str) -> None:
    p = make_delta_problem(family, length=90, segments=True)
    p = replace(p, segments=3 + (torch.arange(90) >= 41).long()[None])
    before = delta_results(delta_attention, p)
    for changed, kept in ((slice(0, 41), slice(41, 90)), (slice(41, 90), slice(0, 41))):
        torch.manual_seed(1)
        other = {}
        for name in ("q", "k", "v", "beta"):
            other[name] = getattr(p, name).clone()
            other[name][:, changed] = torch.rand_like(other[name][:, changed])
        after = delta_results(delta_attention, replace(p, **other))
        for name in ("out", "d_q", "d_k", "d_v", "d_beta", "d_decay"):
            if name in before:
                assert torch.equal(before[name][:, kept], after[name][:, kept]), name
                assert not torch.equal(before[name][:, changed], after[name][:, changed]), name
        unchanged = "final_S" if changed.start == 0 else "d_S"
        assert torch.equal(before[unchanged], after[unchanged])


def test_a_final_state_starts_the_next_call() -> None:
    p = make_delta_problem("channel", length=139, segments=True)
    options = {"scale": 1.0, "chunk_size": None}
    state = LinearState(p.S, None, p.state_segment)
    whole, final = delta_attention(
        p.q, p.k, p.v, p.decay, p.beta, segments=p.segments, state=state, **options
    )
    outputs = []
    for begin, end in ((0, 37), (37, 38), (38, 67), (67, 139)):
        at = slice(begin, end)
        parts = (x[:, at] for x in (p.q, p.k, p.v, p.decay, p.beta))
        o, state = delta_attention(*parts, segments=p.segments[:, at], state=state, **options)
        outputs.append(o)
    assert relative_error(torch.cat(outputs, 1), whole) <= 1e-5
    assert relative_error(state.S, final.S) <= 1e-5
    assert torch.equal(state.segment, final.segment)


def test_a_write_of_weight_zero_changes_nothing() -> None:
    p = make_delta_problem("scalar", length=70)
    silent = replace(p, beta=torch.zeros_like(p.beta))
    actual = delta_results(delta_attention, silent)
    exact = delta_results(delta_recurrence, silent.cast(torch.float64))
    assert (actual["d_v"] == 0).all()
    for name in ("out", "final_S", "d_beta"):  # the gradient that would let it write
        assert relative_error(actual[name], exact[name]) <= 1e-5, name


def test_heads_of_too_many_keys_are_refused() -> None:
    p = make_delta_problem("none", length=3, key_width=257)
    options = {"scale": 1.0, "segments": None, "state": None, "chunk_size": None}
    with pytest.raises(ValueError, match=r"at most K = 256, got 257; use backend='torch'"):
        delta_attention(p.q, p.k, p.v, None, p.beta, **options)
