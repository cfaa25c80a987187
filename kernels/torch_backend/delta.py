"""The delta rule over chunks: S_t = S' + k_t u_t^T, u_t = beta_t (v_t - k_t^T S').

S' is D_t S_{t-1}. Once the writes u are known, this is the additive recurrence with u for v. Inside
a chunk they follow from a triangular system (UT form: Yang et al., 2024, Parallelizing linear
transformers with the delta rule; with decays: Gated DeltaNet and Kimi Linear, 2025). With L[i, j]
the decayed score of key i, as a reader, with an earlier key j, and r_i the key decayed from the
chunk's start, the errors e_i = v_i - k_i^T S' are

    (I + L diag(beta)) e = v - r S_in      so      e = E - F S_in,  u = beta e

with E and F solved for all chunks at once. What remains in sequence is two products per chunk, and
the backward mirrors them:

    S_out  = kept S_in   + (beta keys)^T (E - F S_in)                  keys decayed to the end
    dS_in  = kept dS_out + queries^T do - (beta F)^T (W + keys dS_out)         W = scores^T do

W + keys dS_out reaches the writes through outputs and the next chunk. The transposed system adds
what passes through later writes of the chunk, and turns it into dv. Queries and keys then are two
readers of one additive recurrence, with output gradients do and -dv.

All products take operands of the working type. Writes correct earlier writes, so that signs
alternate where keys return: with just the products after the solves rounded to bfloat16, relative
errors reached 1e-2 in outputs and 6e-2 in gradients of decays.

Axis letters: N chunks, B batch, H heads, C tokens of a chunk, K key width, V value width;
M = N * B * H.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.derivatives import refuse_second_derivative
from kernels.torch_backend.decayed import decayed, decayed_gradients
from kernels.torch_backend.layout import Decayed, DecayedGradients, DocumentMasks
from kernels.torch_backend.states import add_decayed, log_kept_gradient, state_buffer


def delta_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor,
    initial: Tensor,
    length: int,
    masks: DocumentMasks | None,
) -> tuple[Tensor, Tensor]:
    """Outputs [N, B, H, C, V] and final state [B, H, K, V].

    Args:
        q, k, v: [N, B, H, C, K or V], contiguous, zero in the padding after token `length`.
        beta: [N, B, H, C], zero in the padding.
        decay, length, masks: as in `decayed`.
        initial: [B, H, K, V].
    """
    masks = (None,) * 4 if masks is None else masks
    return DeltaChunks.apply(q, k, v, decay, beta, initial, length, *masks)


class DeltaChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor | None,
        beta: Tensor,
        initial: Tensor,
        length: int,
        *masks: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        documents = None if masks[0] is None else DocumentMasks(*masks)
        rows = torch.stack([q, k], dim=4).flatten(3, 4)
        parts, saved = decayed(rows, k, decay, length, documents, k.dtype)
        of_queries, of_keys = _by_reader(parts.scores)
        queries, reading_keys = _by_reader(parts.rows.flatten(0, 2))
        strengths = beta.flatten(0, 2)[..., None]
        system = of_keys.tril(-1)
        known = torch.cat([v.flatten(0, 2), reading_keys], dim=2)
        solved = _solve(system * strengths.mT, known, upper=False)
        errors, responses = (x.contiguous() for x in solved.split([v.shape[4], k.shape[4]], 2))
        keys = parts.keys.flatten(0, 2) * strengths
        states = _states(errors, responses, keys, parts.kept, initial)
        writes = errors * strengths
        out = torch.bmm(of_queries, writes)
        out.baddbmm_(queries, states[:-1].flatten(0, 1))
        ctx.save_for_backward(
            decay, strengths, system, errors, responses, writes, states, *parts, *saved
        )
        return out.view_as(v), states[-1].view_as(initial).clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("linear_attention", ", or backend='reference'")
        with torch.autocast(d_out.device.type, enabled=False):
            return _backward(ctx, d_out.contiguous(), d_final)


def _backward(ctx: Any, d_out: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
    decay, strengths, system, errors, responses, writes, states, *others = ctx.saved_tensors
    parts, saved = Decayed(*others[:4]), others[4:]
    of_queries, _ = _by_reader(parts.scores)
    queries, _ = _by_reader(parts.rows.flatten(0, 2))
    d_out3 = d_out.flatten(0, 2)

    d_writes = torch.bmm(of_queries.mT, d_out3)
    of_outputs = torch.bmm(queries.mT, d_out3)
    d_states = _state_gradients(d_writes, responses * strengths, parts, of_outputs, d_final)
    # Of the writes: first as what the outputs and the next chunk read, then also as what later
    # writes of the chunk read.
    d_v = _solve((system * strengths.mT).mT, d_writes * strengths, upper=True)
    d_writes.sub_(torch.bmm(system.mT, d_v))
    d_beta = (d_writes * errors).sum(2)

    d_read = torch.stack([d_out3, -d_v], dim=2).flatten(1, 2)
    d_scores = torch.bmm(d_read, writes.mT)
    _by_reader(d_scores)[1].diagonal(dim1=1, dim2=2).zero_()  # a key reads before it writes
    needs_decay = ctx.needs_input_grad[3]
    gradients = DecayedGradients(
        d_scores,
        torch.bmm(d_read, states[:-1].flatten(0, 1).mT),
        torch.bmm(writes, d_states[1:].flatten(0, 1).mT),
        log_kept_gradient(states, d_states, parts.kept) if needs_decay else None,
    )
    d_rows, d_k, d_decay = decayed_gradients(parts, saved, gradients, decay, d_out.dtype)
    d_q, d_k_read = d_rows.unflatten(3, (-1, 2)).unbind(4)
    d_k.add_(d_k_read)
    d_initial = d_states[0].view_as(d_final).clone()
    shape = d_out.shape
    return d_q, d_k, d_v.view(shape), d_decay, d_beta.view(shape[:4]), d_initial, *(None,) * 5


def _states(
    errors: Tensor, responses: Tensor, keys: Tensor, kept: Tensor | None, initial: Tensor
) -> Tensor:
    """[N + 1, B * H, K, V]; makes the errors [M, C, V] of an empty state those of its own."""
    count = initial.shape[0] * initial.shape[1]
    states = state_buffer(len(errors) // count, initial)
    states[0].copy_(initial.flatten(0, 1))
    chunks = (x.split(count) for x in (errors, responses, keys))
    for n, (error, response, key) in enumerate(zip(*chunks, strict=True)):
        error.baddbmm_(response, states[n], alpha=-1)
        torch.bmm(key.mT, error, out=states[n + 1])
        add_decayed(states[n + 1], states[n], None if kept is None else kept[n])
    return states


def _state_gradients(
    d_writes: Tensor, responses: Tensor, parts: Decayed, of_outputs: Tensor, d_final: Tensor
) -> Tensor:
    """[N + 1, B * H, K, V]; adds to d_writes [M, C, V] what the chunk's outgoing state passes on.

    of_outputs: [M, K, V], gradient of the incoming states through the outputs.
    """
    count = d_final.shape[0] * d_final.shape[1]
    grads = state_buffer(len(d_writes) // count, d_final)
    grads[-1].copy_(d_final.flatten(0, 1))
    grads[:-1].copy_(of_outputs.view_as(grads[:-1]))
    chunks = (x.split(count) for x in (d_writes, responses, parts.keys.flatten(0, 2)))
    kept = parts.kept
    for n, (d_write, response, key) in reversed(list(enumerate(zip(*chunks, strict=True)))):
        d_write.baddbmm_(key, grads[n + 1])
        grads[n].baddbmm_(response.mT, d_write, alpha=-1)
        add_decayed(grads[n], grads[n + 1], None if kept is None else kept[n])
    return grads


def _by_reader(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Views of [M, 2 C, ..] as [M, C, ..] of the queries and of the keys."""
    return rows.unflatten(1, (-1, 2)).unbind(2)


def _solve(triangle: Tensor, right: Tensor, upper: bool) -> Tensor:
    """(I + triangle)^-1 right, for a strict triangle."""
    return torch.linalg.solve_triangular(triangle, right, upper=upper, unitriangular=True)
