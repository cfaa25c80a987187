"""What `python -m benchmarks.kernels` compares: operators, shapes, documents, in order of weight.

Every call has 2048 channels (heads x width) and 32,768 tokens, in as many rows as they fill; 65,536
tokens are one row. So the work of a linear-time operator is the same at every length, large enough
to hide the cost of launches, and what changes along the length is the length alone.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

TOKENS = 32768
CHANNELS = 2048
OPS = {
    "gla": "GLA, decay per channel and token [B, T, H, K]",
    "retnet": "RetNet, fixed decay per head [H]",
    "simple": "scalar decay per token [B, T, H]",
    "linear": "linear attention, no decay",
    "kda": "KDA, delta rule, decay per channel and token [B, T, H, K]",
    "gated_deltanet": "Gated DeltaNet, delta rule, scalar decay per token [B, T, H]",
    "deltanet": "DeltaNet, delta rule, no decay",
}
DELTA = ("kda", "gated_deltanet", "deltanet")
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
WIDTHS = (64, 128, 256)
TARGET_LENGTH = 16384
TARGET_WIDTH = 128
_PACKED_LENGTHS = (4096, 16384, 65536)


@dataclass(frozen=True)
class Case:
    """One shape. fla: whether FLA is timed too; packed: rows hold documents of mixed lengths."""

    op: str
    rows: int
    length: int
    heads: int
    width: int
    packed: bool = False
    fla: bool = True

    @property
    def compiled(self) -> tuple[str, int, bool]:
        """Cases with the same value run the same compiled kernels."""
        return self.op, self.width, self.packed


def case(op: str, length: int, width: int, packed: bool = False, fla: bool = True) -> Case:
    return Case(op, max(1, TOKENS // length), length, CHANNELS // width, width, packed, fla)


def quick_cases() -> list[Case]:
    """GLA and RetNet, what decides the targets first. FLA's search is left out at width 256."""
    cases = [
        case("gla", TARGET_LENGTH, TARGET_WIDTH),
        case("retnet", TARGET_LENGTH, 256, fla=False),
        case("retnet", TARGET_LENGTH, TARGET_WIDTH),
    ]
    for length in (2048, 4096, 65536):
        cases += [case(op, length, TARGET_WIDTH) for op in ("gla", "retnet")]
    return [*cases, case("gla", TARGET_LENGTH, TARGET_WIDTH, packed=True)]


def all_cases(ops: Iterable[str], lengths: Iterable[int], widths: Iterable[int]) -> list[Case]:
    """The full product, packed at three lengths; the shapes of the targets come first."""
    cases = [case(op, length, width) for width in widths for op in ops for length in lengths]
    cases += [
        case(op, length, width, packed=True)
        for width in widths
        for op in ops
        for length in lengths
        if length in _PACKED_LENGTHS
    ]
    return sorted(
        cases,
        key=lambda c: (c.packed, c.width != TARGET_WIDTH, c.length != TARGET_LENGTH),
    )


def document_lengths(length: int, rows: int, seed: int = 0) -> list[list[int]]:
    """Per row, lengths of documents that fill it: log-uniform from 64 to 16,384 tokens."""
    draw = random.Random(seed)
    documents = []
    for _ in range(rows):
        row, left = [], length
        while left:
            row.append(min(left, int(2 ** draw.uniform(6, 14))))
            left -= row[-1]
        documents.append(row)
    return documents
