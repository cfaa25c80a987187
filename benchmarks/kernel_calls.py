"""One case's inputs, and the same computation as Braid, FLA and softmax attention are called.

Rows are [B, T, H, D], bfloat16, with K = V = D and scale D^-1/2; keys of the delta rule have length
1. Gates and betas are rounded to bfloat16, the type in which FLA takes them fastest and times
itself; Braid gets the same values in float32, which its contract demands. Packed, Braid reads
document numbers per row, and FLA and softmax attention one long row with the documents' borders.
Braid always returns the last state; FLA is not asked to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from benchmarks.kernel_cases import DELTA, Case, document_lengths
from kernels import linear_attention

BRAID, FLA = "Braid", "FLA"
SOFTMAX = ("flash", "cudnn", "varlen")
_PER_CHANNEL = ("gla", "kda")
_PER_TOKEN = ("simple", "gated_deltanet")


@dataclass(frozen=True)
class Inputs:
    """borders: [documents + 1], offsets of documents in all rows put one after another."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None
    beta: Tensor | None
    upstream: Tensor
    segments: Tensor | None
    borders: Tensor | None
    longest: int


@dataclass(frozen=True)
class Call:
    """run: the forward pass, to outputs [B, T, H, D]; leaves: what gradients are taken of."""

    run: Callable[[], Tensor]
    leaves: list[Tensor]
    upstream: Tensor

    @torch.no_grad()
    def forward(self) -> tuple[Tensor, ...]:
        return (self.run(),)

    def training(self) -> tuple[Tensor, ...]:
        """Outputs and gradients, from a forward and a backward pass."""
        out = self.run()
        return out.detach(), *torch.autograd.grad(out, self.leaves, self.upstream)


def make_inputs(case: Case, device: str | torch.device) -> Inputs:
    generator = torch.Generator(device).manual_seed(0)
    shape = case.rows, case.length, case.heads, case.width

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    q, k, v = (random(*shape) for _ in range(3))
    gate = beta = None
    if case.op in (*_PER_CHANNEL, *_PER_TOKEN):
        gate = random(*(shape if case.op in _PER_CHANNEL else shape[:3])).float()
        gate = (F.logsigmoid(gate) / 16).bfloat16().requires_grad_()
    if case.op in DELTA:
        k = F.normalize(k.float(), dim=3).bfloat16()
        beta = random(*shape[:3]).float().sigmoid().bfloat16().requires_grad_()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    segments = borders = None
    longest = case.length
    if case.packed:
        rows = document_lengths(case.length, case.rows)
        segments = torch.tensor(
            [[n for n, size in enumerate(row) for _ in range(size)] for row in rows], device=device
        )
        sizes = [size for row in rows for size in row]
        borders = torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)
        longest = max(sizes)
    return Inputs(q, k, v, gate, beta, random(*shape), segments, borders, longest)


def make_calls(
    case: Case, inputs: Inputs, fla: dict[str, Callable[..., Any]], backend: str = "triton"
) -> dict[str, Call]:
    """By library, what can be asked for this case; FLA only if `fla` holds its operator."""
    calls = {BRAID: _braid(case, inputs, backend)}
    if case.fla and case.op in fla:
        calls[FLA] = _fla(case, inputs, fla[case.op])
    qkv = [inputs.q, inputs.k, inputs.v]
    if case.packed:
        calls["varlen"] = Call(partial(_varlen, inputs), qkv, inputs.upstream)
    else:
        backends = {
            "flash": SDPBackend.FLASH_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION,
        }
        for name, choice in backends.items():
            calls[name] = Call(partial(_softmax, inputs, choice), qkv, inputs.upstream)
    return calls


def _braid(case: Case, inputs: Inputs, backend: str) -> Call:
    q, k, v = inputs.q, inputs.k, inputs.v
    leaves = [q, k, v]
    decay = beta = None
    if inputs.gate is not None:
        decay = inputs.gate.detach().float().requires_grad_()
        leaves.append(decay)
    elif case.op == "retnet":
        heads = torch.arange(case.heads, dtype=torch.float32, device=q.device)
        decay = torch.log1p(-(2.0 ** (-5 - heads)))
    if inputs.beta is not None:
        beta = inputs.beta.detach().float().requires_grad_()
        leaves.append(beta)
    options = {"scale": case.width**-0.5, "segments": inputs.segments, "backend": backend}

    def run() -> Tensor:
        return linear_attention(q, k, v, decay, beta, **options)[0]

    return Call(run, leaves, inputs.upstream)


def _fla(case: Case, inputs: Inputs, op: Callable[..., Any]) -> Call:
    options: dict[str, Any] = {"normalize": False} if case.op == "linear" else {}
    named = {"g": inputs.gate, "beta": inputs.beta}
    named = {name: x for name, x in named.items() if x is not None}
    leaves = [inputs.q, inputs.k, inputs.v, *named.values()]
    if case.packed:
        options["cu_seqlens"] = inputs.borders

    def one_row(x: Tensor) -> Tensor:
        return x.flatten(0, 1).unsqueeze(0) if case.packed else x

    def run() -> Tensor:
        q, k, v, *others = (one_row(x) for x in leaves)
        gates = dict(zip(named, others, strict=True))
        return op(q, k, v, **gates, **options)[0].view(inputs.v.shape)

    return Call(run, leaves, inputs.upstream)


def _softmax(inputs: Inputs, backend: SDPBackend) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _varlen(inputs: Inputs) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (inputs.q, inputs.k, inputs.v))
    borders, longest = inputs.borders, inputs.longest
    out = varlen_attn(q, k, v, borders, borders, longest, longest, window_size=(-1, 0))
    return out.view(inputs.v.shape)
