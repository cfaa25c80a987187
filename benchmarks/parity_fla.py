"""python -m benchmarks.parity_fla: Braid against the plain references of FLA, on its tests' shapes.

    python -m benchmarks.parity_fla
    TRITON_INTERPRET=1 python -m benchmarks.parity_fla --most 1000    # Triton kernels, interpreted

The references are naive.py in fla/ops/{gla,simple_gla,retention,linear_attn,delta_rule,
gated_delta_rule,kda}, step by step in float32; the shapes are those of FLA's tests/ops, inputs are
random and signed (the delta rules' keys of length 1), states come in and go out where a reference
has them. Backend torch always, triton on a GPU and in Triton's interpreter; `--backend` picks one.
Prints relative errors of outputs, final state and gradients; fails if one exceeds its
budget. Needs `pip install flash-linear-attention einops`, and no GPU.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from types import ModuleType

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import fla_ops
from benchmarks.command import parser_of
from kernels import LinearState, linear_attention
from kernels.arguments import whole_number
from kernels.problems import relative_error
from kernels.progress import progress

BUDGETS = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 1e-2}
FOLDERS = {
    "gla": "gla",
    "simple": "simple_gla",
    "retnet": "retention",
    "linear": "linear_attn",
    "deltanet": "delta_rule",
    "gated_deltanet": "gated_delta_rule",
    "kda": "kda",
}
DELTA = ("deltanet", "gated_deltanet", "kda")
DECAYS_PER_CHANNEL, DECAYS_PER_TOKEN = ("gla", "kda"), ("simple", "gated_deltanet")
COLUMNS = ("out", "final state", "d q", "d k", "d v", "d decay", "d beta", "d state")


@dataclass(frozen=True)
class Case:
    """One call. divisor: of the log-sigmoid gates; borders: of documents in a packed row."""

    op: str
    rows: int
    length: int
    heads: int
    key_width: int
    value_width: int
    divisor: float = 1.0
    scale: float | None = None
    borders: tuple[int, ...] | None = None
    normalize: bool = False

    @property
    def size(self) -> int:
        return self.rows * self.length * self.heads

    @property
    def weight(self) -> float:
        return self.scale or self.key_width**-0.5


def cases() -> list[Case]:
    """The shapes of FLA's tests/ops/test_{gla,simple_gla,retention,linear_attn,delta}.py and,
    but for heads of 256, test_{gated_delta,kda}.py, small first.

    Normalised linear attention, which its tests leave out, is added.
    """
    found = [Case("gla", *s[:4], s[3], s[4]) for s in _GLA]
    found += [Case("simple", *s[:4], s[3], s[5], s[4]) for s in _SIMPLE]
    for op, (heads, width, borders) in product(("gla", "simple"), _PACKED):
        found.append(Case(op, 1, borders[-1], heads, width, width, borders=borders))
    for length, width, expand in product((1, 15, 63, 300), (32, 64, 100), (1, 2)):
        found.append(Case("retnet", 2, length, 2, width, expand * width))
    for length, width in product((63, 286, 300, 512), (32, 64, 100)):
        borders = (0, length // 3, length)
        found.append(Case("retnet", 1, length, 2, width, width, borders=borders))
    for length, width, normalize in product((64, 128), (32, 64, 128), (False, True)):
        found.append(Case("linear", 2, length, 2, width, width, normalize=normalize))
    found += [Case("deltanet", 2, length, 3, width, width) for length, width in _DELTA]
    found.append(Case("deltanet", 1, 2000, 2, 64, 64, borders=(0, 15, 100, 300, 1203, 2000)))
    for length, width, divisor in product((1, 15, 63, 300), (32, 64, 100), (0.1, 1, 10)):
        found.append(Case("gated_deltanet", 2, length, 2, width, width, divisor, 1))
    found.append(Case("gated_deltanet", 1, 1000, 2, 128, 128, 1, 1, (0, 122, 229, 400, 1000)))
    found += [Case("kda", *s[:4], s[3], s[5], s[4]) for s in _KDA]
    for heads, width, borders in _KDA_PACKED:
        found.append(Case("kda", 1, borders[-1], heads, width, width, borders=borders))
    return sorted(found, key=lambda case: case.size * case.key_width * case.value_width)


_GLA = [  # B, T, H, D, divisor of the gates
    (1, 63, 1, 64, 1),
    (2, 1024, 4, 60, 1),
    (2, 1024, 8, 128, 0.1),
    (2, 1024, 8, 128, 1),
    (2, 1024, 8, 128, 10),
    (4, 2048, 8, 64, 1),
    (1, 128, 4, 256, 1),
    (1, 64, 2, 320, 1),
    (1, 128, 4, 512, 1),
]
_SIMPLE = [  # B, T, H, D, scale, divisor of the gates
    (1, 63, 1, 64, 1, 1),
    (2, 1024, 4, 60, 1, 1),
    (2, 1024, 8, 128, 1, 0.1),
    (2, 1024, 8, 128, 0.1, 1),
    (2, 1024, 8, 128, 0.1, 10),
    (4, 2048, 8, 64, 0.1, 1),
]
_DELTA = [(56, 60), (211, 110), (400, 200)]  # T, D
_KDA = [  # B, T, H, D, scale, divisor of the gates
    (1, 63, 1, 64, 1, 1),
    (2, 500, 3, 60, 1, 1),
    (2, 1000, 3, 64, 0.1, 1),
    (3, 1024, 4, 100, 1, 0.1),
    (4, 1024, 4, 128, 0.1, 1),
    (2, 1500, 4, 128, 0.1, 10),
    (4, 2048, 8, 64, 0.1, 1),
]
_KDA_PACKED = [  # H, D, borders of the documents
    (4, 60, (0, 15)),
    (4, 64, (0, 256, 500, 1000)),
    (4, 128, (0, 256, 500, 1000)),
    (4, 100, (0, 15, 100, 300, 1200, 2000)),
]
_PACKED = [  # H, D, borders of the documents
    (4, 64, (0, 15)),
    (4, 64, (0, 0, 16)),
    (4, 64, (0, 256, 500, 1000)),
    (4, 100, (0, 15, 100, 300, 1200, 2000)),
    (4, 64, (0, 1, 100, 300, 1200, 2048)),
    (4, 128, (0, 200, 512, 1200, 2048)),
]


def make_tensors(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Leaves by name: q, k, v in `dtype`, all else float32, present where it is read."""
    torch.manual_seed(42)
    shape = case.rows, case.length, case.heads, case.key_width
    q, k = torch.randn(2, *shape)
    v = torch.randn(*shape[:3], case.value_width)
    tensors = {"q": q, "k": k, "v": v}
    if case.normalize:  # a denominator needs positive weights
        tensors |= {"q": q.abs() + 0.1, "k": k.abs() + 0.1}
    if case.op in DELTA:  # which are stable for keys of length 1
        tensors["k"] = F.normalize(k, dim=3)
    tensors = {name: x.to(dtype) for name, x in tensors.items()}
    if case.op in DECAYS_PER_CHANNEL + DECAYS_PER_TOKEN:
        gates = torch.randn(shape if case.op in DECAYS_PER_CHANNEL else shape[:3])
        tensors["decay"] = F.logsigmoid(gates) / case.divisor
    if case.op in DELTA:
        tensors["beta"] = torch.randn(shape[:3]).sigmoid()
    if case.op != "retnet":  # its reference has no states
        tensors["S"] = torch.randn(case.rows, case.heads, case.key_width, case.value_width)
        if case.normalize:
            tensors["z"] = torch.rand(case.rows, case.heads, case.key_width) + 0.5
    return {name: x.to(device).requires_grad_() for name, x in tensors.items()}


_PER_TOKEN = ("q", "k", "v", "decay", "beta")

Results = tuple[Tensor, Tensor | None]  # outputs [B, T, H, V] and the last document's final state


def reference(case: Case, naive: ModuleType, x: dict[str, Tensor]) -> Results:
    """FLA's plain reference, once per document; a state comes in to the first, out of the last."""
    borders = case.borders or (0, case.length)
    outputs, state = [], None
    for number, (start, end) in enumerate(pairwise(borders)):
        part = {name: x[name][:, start:end] for name in _PER_TOKEN if name in x}
        part |= {name: x[name] for name in ("S", "z") if name in x and number == 0}
        out, state = _one_document(case, naive, part)
        outputs.append(out)
    return torch.cat(outputs, 1), state


def _one_document(case: Case, naive: ModuleType, x: dict[str, Tensor]) -> Results:
    q, k, v, S = x["q"], x["k"], x["v"], x.get("S")
    if case.op == "gla":
        return naive.naive_recurrent_gla(q, k, v, x["decay"], S, output_final_state=True)
    if case.op == "simple":
        return naive.naive_recurrent_simple_gla(q, k, v, x["decay"], case.weight, S)
    if case.op == "deltanet":
        rows = (y.transpose(1, 2) for y in (q, k, v, x["beta"]))
        out, state = naive.delta_rule_recurrence(*rows, S)
        return out.transpose(1, 2), state
    if case.op == "gated_deltanet":
        return naive.naive_recurrent_gated_delta_rule(
            q, k, v, x["beta"], x["decay"], case.weight, S, output_final_state=True
        )
    if case.op == "kda":
        return naive.naive_recurrent_kda(
            q, k, v, x["decay"], x["beta"], case.weight, S, output_final_state=True
        )
    if case.op == "retnet":
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        return naive.naive_retention(q, k, v).transpose(1, 2), None
    initial = (S, x["z"].unsqueeze(1)) if case.normalize else S
    out, state = naive.naive_recurrent_linear_attn(
        q, k, v, case.weight, initial, output_final_state=True, normalize=case.normalize
    )
    return out, state[0] if case.normalize else state


def braid(case: Case, backend: str, x: dict[str, Tensor]) -> Results:
    """The same through `linear_attention`."""
    q = x["q"]
    decay, segments, state = x.get("decay"), None, None
    if case.op == "retnet":
        heads = torch.arange(case.heads, dtype=torch.float32, device=q.device)
        decay = torch.log1p(-(2.0 ** (-5 - heads)))
    if case.borders:
        sizes = torch.tensor([end - start for start, end in pairwise(case.borders)])
        numbers = torch.arange(len(sizes)).repeat_interleave(sizes)
        segments = numbers.expand(case.rows, -1).to(q.device)
    if "S" in x:
        first = None if segments is None else torch.zeros_like(segments[:, 0])
        state = LinearState(x["S"], x.get("z"), first)
    out, last = linear_attention(
        q, x["k"], x["v"], decay, x.get("beta"),
        scale=case.weight, normalize=case.normalize, segments=segments, state=state,
        backend=backend,
    )  # fmt: skip
    return out, None if case.op == "retnet" else last.S


def results(run: Callable[[], Results], x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs, final state, and the gradients of a fixed random functional of both, by COLUMNS."""
    out, state = run()
    found = {"out": out} if state is None else {"out": out, "final state": state}
    generator = torch.Generator().manual_seed(7)
    loss = sum(
        (y.float() * torch.randn(y.shape, generator=generator).to(y.device)).sum()
        for y in found.values()
    )
    gradients = torch.autograd.grad(loss, list(x.values()), allow_unused=True)
    names = {"S": "d state", "z": "d state"}
    for (name, leaf), gradient in zip(x.items(), gradients, strict=True):
        if name != "z":
            found[names.get(name, f"d {name}")] = (
                torch.zeros_like(leaf) if gradient is None else gradient
            )
    return {name: y.detach() for name, y in found.items()}


def errors(case: Case, dtype: torch.dtype, backend: str, naive: ModuleType, device: str):
    """Relative errors of one case against the reference, by COLUMNS."""
    x = make_tensors(case, dtype, device)
    expected = results(lambda: reference(case, naive, x), x)
    actual = results(lambda: braid(case, backend, x), x)
    return {name: relative_error(actual[name], expected[name]) for name in expected}


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a budget is missed, 2 if FLA is not there."""
    options = _parser().parse_args(arguments)
    try:
        naive = {op: fla_ops.naive_module(folder) for op, folder in FOLDERS.items()}
    except fla_ops.FlaMissing as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    device = "cuda" if torch.cuda.is_available() else "cpu"
    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    possible = ["torch", "triton"] if interpreted or device == "cuda" else ["torch"]
    backends = options.backend or possible
    if not set(backends) <= set(possible):
        print(
            "error: --backend triton: PyTorch finds no GPU here; set TRITON_INTERPRET=1 to run the "
            "kernels in Triton's slow interpreter, with --most 1000 or so",
            file=sys.stderr,
        )
        return 2
    dtype = getattr(torch, options.dtype)
    of_ops = [case for case in cases() if case.op in options.op]
    chosen = [case for case in of_ops if case.size <= options.most]
    if not chosen:
        smallest = min(case.size for case in of_ops)
        print(f"error: --most {options.most}: the smallest shape has {smallest}", file=sys.stderr)
        return 2
    table = Table("op", "B", "T", "H", "K", "V", "documents", "backend", *COLUMNS, "", box=None)
    total, missed, worst = 0, 0, dict.fromkeys(backends, 0.0)
    for case in progress(chosen, "parity"):
        for backend in backends:
            found = errors(case, dtype, backend, naive[case.op], device)
            passed = all(error <= BUDGETS[dtype] for error in found.values())
            total, missed = total + 1, missed + (not passed)
            worst[backend] = max(worst[backend], *found.values())
            table.add_row(*_cells(case, backend, found), "" if passed else "MISSED")
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"FLA {fla_ops.version()}, torch {torch.__version__}, {where}, {options.dtype}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    for backend in backends:
        print(f"{backend}: worst relative error {worst[backend]:.1e}")
    left_out = len(of_ops) - len(chosen)
    print(f"{total - missed} of {total} within {BUDGETS[dtype]:.0e}; {left_out} shapes left out")
    return 1 if missed else 0


def _cells(case: Case, backend: str, found: dict[str, float]) -> list[str]:
    sizes = (case.rows, case.length, case.heads, case.key_width, case.value_width)
    op = f"{case.op}, normalised" if case.normalize else case.op
    documents = str(len(case.borders) - 1) if case.borders else ""
    numbers = [f"{found[name]:.1e}" if name in found else "-" for name in COLUMNS]
    return [op, *map(str, sizes), documents, backend, *numbers]


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.parity_fla", __doc__)
    parser.add_argument("--op", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument("--backend", nargs="+", choices=["torch", "triton"], help="default: all")
    types = [str(dtype).removeprefix("torch.") for dtype in BUDGETS]
    parser.add_argument("--dtype", choices=types, default=types[0], help="of q, k and v")
    parser.add_argument(
        "--most", type=whole_number(), default=1 << 30, metavar="N", help="leave out B T H above N"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
