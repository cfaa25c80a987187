"""The recurrences over chunks as operators for compilers."""

import pytest
import torch

from kernels.torch_backend.additive import additive_chunks
from kernels.torch_backend.delta import delta_chunks
from kernels.torch_backend.layout import document_masks
from kernels.torch_backend.opaque import opaque_chunks

SHAPE = (3, 2, 2, 8, 4)  # chunks, batch, heads, tokens of a chunk, width
DECAYS = {"none": None, "head": (2,), "scalar": SHAPE[:4], "channel": SHAPE}


def arguments(decay: str, delta: bool, packed: bool) -> list:
    torch.manual_seed(0)
    q, k, v = (torch.randn(SHAPE) / 2 for _ in range(3))
    shape = DECAYS[decay]
    g = None if shape is None else -torch.rand(shape)
    beta = torch.rand(SHAPE[:4]) if delta else None
    tensors = [q, k, v, g, beta, torch.randn(2, 2, 4, 4)]
    tensors = [x if x is None else x.requires_grad_() for x in tensors]
    segments = torch.arange(24).div(10, rounding_mode="floor").repeat(2, 1)
    masks = document_masks(segments, None, 8, torch.float32) if packed else None
    return [*tensors, 24, masks, torch.float32, False]


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize(("decay", "packed"), [("none", True), ("head", False), ("channel", True)])
def test_operators_declare_what_they_do(decay, delta, packed):
    *tensors, length, masks, dtype, normalize = arguments(decay, delta, packed)
    flat = (*tensors, *(masks or (None,) * 4), length, dtype, normalize)
    torch.library.opcheck(torch.ops.braid.chunks.default, flat)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_outputs_and_gradients_have_the_bits_of_the_eager_ones(decay, delta):
    given = arguments(decay, delta, packed=True)
    q, k, v, g, beta, initial, length, masks, dtype, normalize = given
    if delta:
        eager = delta_chunks(q, k, v, g, beta, initial, length, masks)
    else:
        eager = additive_chunks(q, k, v, g, initial, length, masks, dtype, normalize)
    with torch.autocast("cpu", torch.bfloat16):  # a caller's, which compilers may leave on
        opaque = opaque_chunks(*given)
    leaves = [x for x in given[:6] if x is not None]
    upstream = [torch.randn_like(x) for x in eager]
    expected = torch.autograd.grad(eager, leaves, upstream)
    gradients = torch.autograd.grad(opaque, leaves, upstream)
    for x, wanted in zip((*opaque, *gradients), (*eager, *expected), strict=True):
        assert torch.equal(x, wanted)
