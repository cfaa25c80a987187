"""The decoding kernel as a PyTorch operator, `braid::decode`: with a fake, without gradients."""

import torch
from torch import Tensor

from kernels.triton.blocks import MOST_STEPS
from kernels.triton.decode import launch_decode
from kernels.triton.launch import CHUNK_TILES, Problem


def decodes(length: int, *tensors: Tensor | None) -> bool:
    """Whether a call is left to this operator: few tokens, and nothing of it is differentiated."""
    if length > MOST_STEPS:
        return False
    differentiated = any(x is not None and x.requires_grad for x in tensors)
    return not (differentiated and torch.is_grad_enabled())


@torch.library.custom_op("braid::decode", mutates_args=())
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    segments: Tensor | None,
    S: Tensor | None,
    z: Tensor | None,
    first: Tensor | None,
    scale: float,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `kernels.triton.decode.launch_decode`; first: [B] document of the incoming state."""
    options = (scale, normalize, False, CHUNK_TILES)
    p = Problem.of(q, k, v, decay, segments, first, *options, delta=beta is not None)
    return launch_decode(p, beta, S, z)


@decode.register_fake
def _(q, k, v, decay, beta, segments, S, z, first, scale, normalize):
    batch, _, heads, key_width = q.shape
    work = {"dtype": torch.float32}
    return (
        v.new_empty(v.shape),
        q.new_empty(batch, heads, key_width, v.shape[3], **work),
        q.new_empty((batch, heads, key_width) if normalize else 0, **work),
    )
