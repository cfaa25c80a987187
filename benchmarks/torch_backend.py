"""Time the torch backend against causal softmax attention, in one process.

    python -m benchmarks.torch_backend
    python -m benchmarks.torch_backend --shapes 1x16384x4x64x64 --threads 2 --repeats 5

Families are named by their decay, with delta_ for the delta rule. Prints the median milliseconds of
the forward and of forward plus backward, the ratio of the latter to scaled_dot_product_attention at
the same length and to the scalar-decay family. The candidates take turns, so that a busy moment of
the machine hits all of them alike. "autograd" is the chunked scalar form left to automatic
differentiation: what the hand-written backward saves. Decoding is one step of one row with a
carried state.
"""

import argparse
import platform
import re
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import linear_attention

FAMILIES = ("none", "head", "scalar", "channel", "delta_none", "delta_scalar", "delta_channel")
DEFAULT_SHAPES = [
    (4, 1024, 4, 64, 64),
    (4, 1024, 4, 32, 64),
    (1, 4096, 4, 64, 64),
    (1, 16384, 4, 64, 64),
]
LONGEST_SOFTMAX = 8192  # beyond it one softmax backward takes many seconds on a CPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--shapes", nargs="+", type=_shape, default=DEFAULT_SHAPES, help="BxTxHxKxV"
    )
    parser.add_argument("--threads", type=_count, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=_count, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__}, {platform.machine()}, {arguments.threads} threads, float32, "
        f"medians of {arguments.repeats}"
    )
    for shape in arguments.shapes:
        report(shape, arguments.repeats)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 9999")
    return int(text)


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){4}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not five whole numbers BxTxHxKxV, such as 1x1024x4x64x64"
        )
    return tuple(map(int, text.split("x")))


def report(shape: tuple[int, ...], repeats: int) -> None:
    batch, length, heads, key_width, value_width = shape
    candidates = {family: linear_candidate(family, shape) for family in FAMILIES}
    candidates["autograd"] = autograd_candidate(shape)
    if length <= LONGEST_SOFTMAX:
        candidates["softmax"] = softmax_candidate(shape)
    forward, both = medians(candidates, repeats)
    print(f"\nB {batch}  T {length}  H {heads}  K {key_width}  V {value_width}")
    print(
        f"{'':14}{'fwd ms':>9}{'fwd+bwd ms':>12}{'/ softmax':>11}{'/ scalar':>10}{'decode us':>11}"
    )
    for name in candidates:
        softmax = f"{both[name] / both['softmax']:.2f}" if "softmax" in both else "-"
        step = f"{decode_microseconds(name, shape):.0f}" if name in FAMILIES else "-"
        print(
            f"{name:14}{forward[name]:9.1f}{both[name]:12.1f}{softmax:>11}"
            f"{both[name] / both['scalar']:10.2f}{step:>11}"
        )


Candidate = tuple[Callable[[], Tensor], list[Tensor]]


def linear_candidate(family: str, shape: tuple[int, ...]) -> Candidate:
    batch, length, heads, key_width, value_width = shape
    q, k = torch.randn(2, batch, length, heads, key_width)
    v = torch.randn(batch, length, heads, value_width)
    decay = log_decay(family, shape)
    beta = None
    if family.startswith("delta_"):
        k, beta = F.normalize(k, dim=3), torch.rand(batch, length, heads)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    if decay is not None and decay.dim() > 1:  # a decay per head, as in RetNet, is not learned
        leaves.append(decay.requires_grad_())
    if beta is not None:
        leaves.append(beta.requires_grad_())
    return lambda: linear_attention(q, k, v, decay, beta, scale=key_width**-0.5)[0], leaves


def log_decay(family: str, shape: tuple[int, ...]) -> Tensor | None:
    batch, length, heads, key_width, _ = shape
    sizes = {"scalar": (batch, length, heads), "channel": (batch, length, heads, key_width)}
    kind = family.removeprefix("delta_")
    if kind == "none":
        return None
    if kind == "head":
        return torch.log1p(-(2.0 ** (-5 - torch.arange(heads))))
    return F.logsigmoid(torch.randn(sizes[kind])) / 16


def softmax_candidate(shape: tuple[int, ...]) -> Candidate:
    batch, length, heads, key_width, value_width = shape
    q, k = torch.randn(2, batch, heads, length, key_width)
    v = torch.randn(batch, heads, length, value_width)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), leaves


def autograd_candidate(shape: tuple[int, ...], chunk: int = 64) -> Candidate:
    """Scalar decay, chunked, written for brevity; the length must be a multiple of the chunk."""
    q, k, v, decay = linear_candidate("scalar", shape)[1]
    causal = torch.ones(chunk, chunk, dtype=torch.bool).tril()

    def run() -> Tensor:
        def cut(x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, chunk)).transpose(2, 3).contiguous()

        queries, keys, values, gates = cut(q) * shape[3] ** -0.5, cut(k), cut(v), cut(decay)
        sums = gates.cumsum(-1)
        exponents = (sums[..., :, None] - sums[..., None, :]).masked_fill(~causal, -torch.inf)
        out = (queries @ keys.mT * exponents.exp()) @ values
        updates = (keys * (sums[..., -1:] - sums).exp()[..., None]).mT @ values
        state, states = torch.zeros_like(updates[:, 0]), []
        for n in range(updates.shape[1]):
            states.append(state)
            state = state * sums[:, n, :, -1, None, None].exp() + updates[:, n]
        out = out + (queries * sums.exp()[..., None]) @ torch.stack(states, 1)
        return out.transpose(2, 3).flatten(1, 2).contiguous()

    return run, [q, k, v, decay]


def medians(
    candidates: dict[str, Candidate], repeats: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of the forward alone and of forward plus backward, after one warm-up."""
    forward = {name: [] for name in candidates}
    both = {name: [] for name in candidates}
    for _ in range(repeats + 1):
        for name, (run, leaves) in candidates.items():
            start = time.perf_counter()
            with torch.no_grad():
                out = run()
            middle = time.perf_counter()
            torch.autograd.grad(run(), leaves, torch.ones_like(out))
            forward[name].append(middle - start)
            both[name].append(time.perf_counter() - middle)
    return tuple(
        {name: 1e3 * statistics.median(times[1:]) for name, times in table.items()}
        for table in (forward, both)
    )


@torch.no_grad()
def decode_microseconds(family: str, shape: tuple[int, ...], steps: int = 50) -> float:
    _, _, heads, key_width, value_width = shape
    q, k = torch.randn(2, 1, 1, heads, key_width)
    v = torch.randn(1, 1, heads, value_width)
    decay = log_decay(family, (1, 1, heads, key_width, value_width))
    k = F.normalize(k, dim=3)
    beta = torch.rand(1, 1, heads) if family.startswith("delta_") else None
    state, times = None, []
    for _ in range(steps):
        start = time.perf_counter()
        _, state = linear_attention(q, k, v, decay, beta, state=state)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


if __name__ == "__main__":
    main()
