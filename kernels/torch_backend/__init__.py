"""Chunked backend in plain torch operators: the fast path on CPUs, traceable by compilers.

Everything large is a batched matrix product over [chunks * batch * heads]; states pass from
chunk to chunk in sequence. bfloat16 inputs are multiplied as bfloat16, on any device (a CPU without
bfloat16 units emulates that slowly); decays, weights, denominators, states and all sums across
products stay float32. float16 inputs are multiplied in float32: sums over a long row leave the
range of float16. So are bfloat16 inputs where rounded operands would show: for a learned decay per
head, in those gradients of a normalised output that are differences from a mean, and with the delta
rule.
"""

import torch
from torch import Tensor

from kernels.reference import reference_attention
from kernels.state import LinearState, divide_or_zero, empty_state, work_dtype
from kernels.torch_backend.additive import additive_chunks
from kernels.torch_backend.delta import delta_chunks
from kernels.torch_backend.layout import cut, from_chunks
from kernels.torch_backend.opaque import opaque_rows

# Measured with benchmarks/torch_backend.py: small chunks waste less on the causal triangle, but
# each has a state of its own, which is large when keys and values are wide.
NARROW_WIDTH, NARROW_CHUNK, WIDE_CHUNK = 64, 32, 64
STEPPED_LENGTH = 4  # up to here stepping beats building chunks


def torch_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    *,
    scale: float,
    normalize: bool,
    segments: Tensor | None,
    state: LinearState | None,
    chunk_size: int | None,
) -> tuple[Tensor, LinearState]:
    """Arguments as in `linear_attention`, already validated."""
    with torch.autocast(q.device.type, enabled=False):
        if q.shape[1] <= STEPPED_LENGTH:
            return reference_attention(
                q, k, v, decay, beta, scale=scale, normalize=normalize, segments=segments,
                state=state, chunk_size=chunk_size,
            )  # fmt: skip
        return _chunked(q, k, v, decay, beta, scale, normalize, segments, state, chunk_size)


def _chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    normalize: bool,
    segments: Tensor | None,
    state: LinearState | None,
    chunk_size: int | None,
) -> tuple[Tensor, LinearState]:
    length, value_width, work = q.shape[1], v.shape[3], work_dtype(v.dtype)
    if chunk_size is None:
        narrow = max(q.shape[3], value_width) <= NARROW_WIDTH
        chunk_size = NARROW_CHUNK if narrow else WIDE_CHUNK
    S, z, first = empty_state(q, v, normalize) if state is None else state
    values = v
    if normalize:
        # A value column of ones turns the denominator into one more output channel.
        values = torch.cat([v, v.new_ones(()).expand(*v.shape[:3], 1)], dim=3)
        S = torch.cat([S, z.unsqueeze(3)], dim=3)
        scale = 1.0  # cancels
    dtype = _operand_dtype(v.dtype, decay)
    rows = (q, k, values, decay, beta)
    if torch.compiler.is_compiling():
        out, S = opaque_rows(*rows, S, segments, first, scale, chunk_size, dtype, normalize)
    else:
        chunks = cut(*rows, segments, first, scale, chunk_size, work)
        if beta is None:
            parts = (*chunks[:4], S, length, chunks.masks)
            out, S = additive_chunks(*parts, dtype, normalize)
        else:
            out, S = delta_chunks(*chunks[:5], S, length, chunks.masks)
        out = from_chunks(out, length)
    z = None
    if normalize:
        out = divide_or_zero(out[..., :value_width], out[..., value_width])
        S, z = S[..., :value_width], S[..., value_width]
    last = None if segments is None else segments[:, -1]
    return out.to(v.dtype).contiguous(), LinearState(S, z, last)


def _operand_dtype(inputs: torch.dtype, decay: Tensor | None) -> torch.dtype:
    """The type in which the large products of the additive write take their operands.

    The gradient of a per-head decay sums signed terms over all tokens. They may cancel until
    rounding dominates, so that call is multiplied in the working type.
    """
    learned_per_head = decay is not None and decay.dim() == 1 and decay.requires_grad
    if inputs == torch.bfloat16 and not learned_per_head:
        return inputs
    return work_dtype(inputs)
