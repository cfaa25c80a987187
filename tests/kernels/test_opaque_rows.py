"""The recurrences over rows as operators for compilers."""

import pytest
import torch
from kernel_oracle import make_problem

from kernels.torch_backend.additive import additive_chunks
from kernels.torch_backend.delta import delta_chunks
from kernels.torch_backend.layout import cut, from_chunks
from kernels.torch_backend.opaque import opaque_rows

LENGTH = 21  # of which the last chunk has 5


def arguments(family: str, segments: bool, dtype: torch.dtype = torch.float32) -> list:
    p = make_problem(family, length=LENGTH, key_width=4, value_width=4, segments=segments)
    p = p.cast(dtype)
    tensors = [p.q, p.k, p.v, p.decay, p.beta, p.S]
    tensors = [x if x is None else x.clone().requires_grad_() for x in tensors]
    return [*tensors, p.segments, p.state_segment, 0.5, 8, torch.float32, False]


@pytest.mark.parametrize(
    ("family", "segments"),
    [("none", True), ("head", False), ("delta_scalar", True), ("delta_channel", False)],
)
def test_operators_declare_what_they_do(family: str, segments: bool) -> None:
    torch.library.opcheck(opaque_rows, arguments(family, segments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients_have_the_bits_of_the_eager_ones(
    family: str, dtype: torch.dtype
) -> None:
    given = arguments(family, segments=True, dtype=dtype)
    *rows, initial, segments, first, scale, chunk_size, operands, normalize = given
    chunks = cut(*rows, segments, first, scale, chunk_size, torch.float32)
    *parts, beta, masks = chunks
    if beta is None:
        out, final = additive_chunks(*parts, initial, LENGTH, masks, operands, normalize)
    else:
        out, final = delta_chunks(*parts, beta, initial, LENGTH, masks)
    eager = (from_chunks(out, LENGTH), final)
    with torch.autocast("cpu", torch.bfloat16):  # a caller's, which compilers may leave on
        opaque = opaque_rows(*given)
    leaves = [x for x in given[:6] if x is not None]
    upstream = [torch.randn_like(x) for x in eager]
    expected = torch.autograd.grad(eager, leaves, upstream)
    gradients = torch.autograd.grad(opaque, leaves, upstream)
    for x, wanted in zip((*opaque, *gradients), (*eager, *expected), strict=True):
        assert torch.equal(x, wanted)
        assert x.is_contiguous()
