"""The Triton kernels as PyTorch operators, interpreted: tracing, checkpointing, layouts, sizes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from kernel_oracle import call, make_problem, outputs_and_gradients, relative_error
from torch.utils.checkpoint import checkpoint

from kernels import LinearState, linear_attention
from kernels.triton.delta_ops import delta_backward, delta_forward
from kernels.triton.interpreter import narrow, truncate, widen
from kernels.triton.ops import additive_backward, additive_forward

TRITON = {"backend": "triton"}


def small(family: str, **options):
    return make_problem(family, batch=1, length=20, key_width=16, value_width=16, **options)


@pytest.mark.parametrize(
    ("family", "normalize"),
    [pytest.param("channel", True, marks=pytest.mark.long), ("head", False)],
)
def test_the_operators_keep_pytorchs_rules(family: str, normalize: bool) -> None:
    p = small(family, normalize=normalize, segments=True)
    leaves = {name: x.clone().requires_grad_() for name, x in p.leaves().items()}
    p = replace(p, **leaves)
    options = (1.0, normalize, False, 4)
    inputs = (p.q, p.k, p.v, p.decay, p.segments, p.S, p.z, p.state_segment, *options)
    torch.library.opcheck(additive_forward, inputs)
    with torch.no_grad():
        o, S, z, *kept = additive_forward(*inputs)
        d_z = torch.ones_like(z) if normalize else None
        saved = (p.q, p.k, p.v, p.decay, p.segments, p.state_segment, o, *kept)
        arguments = (torch.ones_like(o), S, d_z, *saved, *options, True)
        torch.library.opcheck(additive_backward, [_detached(x) for x in arguments])


def test_the_operators_of_the_delta_rule_keep_pytorchs_rules() -> None:
    p = small("delta_head", heads=1, segments=True)
    leaves = {name: x.clone().requires_grad_() for name, x in p.leaves().items()}
    p = replace(p, **leaves)
    options = (1.0, 4)
    inputs = (p.q, p.k, p.v, p.decay, p.beta, p.segments, p.S, p.state_segment, *options)
    torch.library.opcheck(delta_forward, inputs)
    with torch.no_grad():
        o, S, *kept = delta_forward(*inputs)
        saved = (p.q, p.k, p.v, p.decay, p.beta, p.segments, p.state_segment, *kept)
        arguments = (torch.ones_like(o), S, *saved, *options, True)
        torch.library.opcheck(delta_backward, [_detached(x) for x in arguments])


def _detached(x):
    return x.detach() if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("family", ["none", "channel", "delta_scalar"])
def test_blocks_compile_as_one_graph(family: str) -> None:
    p = small(family)
    counted = []

    def backend(graph, inputs):
        counted.append(graph)
        return graph.forward

    def block(q, k, v):
        o, state = linear_attention(q.relu(), k, v, p.decay, p.beta, **TRITON)
        return o.sin().sum() + state.S.sum()

    leaves = [x.clone().requires_grad_() for x in (p.q, p.k, p.v)]
    traced = torch.compile(block, fullgraph=True, backend=backend)(*leaves)
    gradients = torch.autograd.grad(traced, leaves)
    expected = torch.autograd.grad(block(*leaves), leaves)
    assert len(counted) == 1
    for x, y in zip(gradients, expected, strict=True):
        assert torch.equal(x, y)


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    p = small("scalar", segments=True)
    leaves = [x.clone().requires_grad_() for x in (p.q, p.k, p.v)]

    def block(q, k, v):
        return call(replace(p, q=q, k=k, v=v), **TRITON)[0].square()

    plain = torch.autograd.grad(block(*leaves).sum(), leaves)
    again = torch.autograd.grad(checkpoint(block, *leaves, use_reentrant=False).sum(), leaves)
    for x, y in zip(plain, again, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("family", "length"),
    [
        ("channel", 66),
        ("delta_scalar", 66),
        pytest.param("channel", 130, marks=pytest.mark.long),
        pytest.param("delta_scalar", 130, marks=pytest.mark.long),
    ],
)
def test_reruns_are_bit_identical_and_chunks_of_any_size_agree(family: str, length: int) -> None:
    p = make_problem(
        family, batch=1, heads=1, length=length, key_width=16, value_width=16, segments=True
    )
    first = outputs_and_gradients(p, **TRITON)
    again = outputs_and_gradients(p, **TRITON)
    one_tile = outputs_and_gradients(p, **TRITON, chunk_size=1)
    for name, x in first.items():
        assert torch.equal(x, again[name]), name
        assert relative_error(one_tile[name], x) <= 1e-6, name


@pytest.mark.parametrize("family", ["head", "channel", "delta_channel"])
def test_document_b_is_unchanged_when_document_a_changes(family: str) -> None:
    p = make_problem(family, batch=1, length=90, key_width=16, value_width=16, segments=True)
    p = replace(p, segments=3 + (torch.arange(90) >= 41).long()[None])
    other = torch.randn(p.q.shape) * 9
    later = (torch.arange(90) >= 41)[None, :, None, None]
    keys = other if p.beta is None else F.normalize(other, dim=3)
    changed = replace(p, k=torch.where(later, p.k, keys), v=torch.where(later, p.v, other))
    a, b = (outputs_and_gradients(x, **TRITON) for x in (p, changed))
    for name in ("out", "d_q", "d_k", "d_v"):
        assert torch.equal(a[name][:, 41:], b[name][:, 41:]), name
    assert torch.equal(a["final_S"], b["final_S"])


def test_offsets_do_not_end_at_two_to_the_thirty_first() -> None:
    # fla-org/flash-linear-attention#1080, #769. The memory is reserved, and hardly touched.
    far = 1 << 31
    memory = torch.empty(far + 4096, dtype=torch.bfloat16)
    q = memory.as_strided((1, 20, 2, 16), (0, 16, far, 1))
    torch.manual_seed(0)
    q.copy_(torch.randn(q.shape))
    expected, _ = linear_attention(*(q.contiguous() for _ in range(3)), **TRITON)
    o, _ = linear_attention(q, q, q, **TRITON)
    assert torch.equal(o, expected)
    assert o[:, :, 1].abs().sum() > 0


@pytest.mark.parametrize("family", ["channel", "delta_channel"])
def test_a_final_state_starts_the_next_call(family: str) -> None:
    p = make_problem(
        family, batch=1, heads=1, length=139, key_width=16, value_width=16, segments=True
    )
    whole, final = call(p, **TRITON)
    state = LinearState(p.S, p.z, p.state_segment)
    outputs = []
    for begin, end in ((0, 37), (37, 38), (38, 67), (67, 139)):
        at = slice(begin, end)
        tensors = (p.q, p.k, p.v, p.decay, p.beta)
        parts = (None if x is None else x[:, at] for x in tensors)
        o, state = linear_attention(*parts, segments=p.segments[:, at], state=state, **TRITON)
        outputs.append(o)
    assert relative_error(torch.cat(outputs, 1), whole) <= 1e-6
    assert relative_error(state.S, final.S) <= 1e-6


def test_the_interpreter_rounds_bfloat16_and_tf32_as_hardware_does() -> None:
    values = torch.cat([torch.randn(1000), torch.tensor([0.0, float("inf"), -1e-40, 3e38])])
    expected = values.bfloat16()
    patterns = narrow(values.numpy())
    assert torch.equal(torch.from_numpy(widen(patterns)), expected.float())
    cut = torch.from_numpy(truncate(values[:1000].numpy()))
    digits = cut.frexp().mantissa * 2**11
    assert torch.equal(digits, digits.trunc())
    missing = (values[:1000] - cut) / cut
    assert 0 <= missing.min() < missing.max() < 2**-10


def test_a_write_of_weight_zero_changes_nothing() -> None:
    p = make_problem("delta_scalar", batch=1, heads=1, length=70, key_width=16, value_width=16)
    silent = replace(p, beta=torch.zeros_like(p.beta))
    actual = outputs_and_gradients(silent, **TRITON)
    exact = outputs_and_gradients(silent.cast(torch.float64), backend="reference")
    assert (actual["d_v"] == 0).all()
    for name in ("out", "final_S", "d_beta"):  # the gradient that would let it write
        assert relative_error(actual[name], exact[name]) <= 1e-5, name


@pytest.mark.parametrize("family", ["scalar", "channel"])
def test_one_tensor_may_be_queries_keys_and_values(family: str) -> None:
    p = make_problem(family, batch=1, length=130, key_width=16, value_width=16)
    _, expected = linear_attention(p.q, p.q.clone(), p.q.clone(), p.decay, **TRITON)
    _, state = linear_attention(p.q, p.q, p.q, p.decay, **TRITON)
    assert torch.equal(state.S, expected.S)


@pytest.mark.parametrize("family", ["scalar", "channel", "delta_scalar"])
def test_a_head_may_have_a_single_channel(family: str) -> None:
    p = make_problem(family, batch=1, length=70, key_width=1, value_width=1, segments=True)
    actual = outputs_and_gradients(p, **TRITON)
    exact = outputs_and_gradients(p.cast(torch.float64), backend="reference")
    for name, expected in exact.items():
        assert relative_error(actual[name], expected) <= 1e-5, name
