"""The vocabulary of the accounting: a shape, a tensor that a kernel touches, a kernel.

Axis letters: b rows of the batch, t tokens, h heads, k key width, v value width.

Counting rules, the same for every row of every table:
- Within one kernel a tensor counts once, however many programs load it: programs that share tokens
  run side by side, and what they share (a few hundred kB) stays in the L2 cache. `requested` counts
  every load of every program instead, as if there were no cache.
- FLOPs are the ones executed: a masked half of a tile and a product recomputed by two programs
  count. A multiply-add is two.
- Vector operations are float32 operations outside the products, one per addition, multiplication
  or exponential and element. Masks, conversions and index arithmetic are left out, so the
  number is a lower bound.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

Decay = Literal["none", "head", "scalar", "channel"]  # no decay, [H], [B, T, H], [B, T, H, K]
Dtype = Literal["bfloat16", "float16", "float32"]
Direction = Literal["forward", "backward"]

FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class Shape:
    """One call of `kernels.linear_attention` without segments and without an initial state.

    A decay per head is taken as fixed (RetNet) and gets no gradient; the others do.
    """

    batch: int = 2
    length: int = 16384
    heads: int = 16
    key_width: int = 128
    value_width: int = 128
    decay: Decay = "channel"
    dtype: Dtype = "bfloat16"  # of q, k and v
    normalize: bool = False
    delta: bool = False  # the delta rule, with beta [B, T, H]

    def elements(self, axes: str) -> int:
        """The number of elements of a tensor with these axes, such as "bthk"."""
        sizes = {
            "b": self.batch,
            "t": self.length,
            "h": self.heads,
            "k": self.key_width,
            "v": self.value_width,
        }
        return math.prod(sizes[axis] for axis in axes)

    @property
    def input_bytes(self) -> int:
        return FLOAT32 if self.dtype == "float32" else 2

    @property
    def operand_bytes(self) -> int:
        """Size of what passes between our kernels: float16 is too narrow for sums, and the delta
        rule, whose writes undo earlier ones, needs more digits than bfloat16 has.
        """
        return 2 if self.dtype == "bfloat16" and not self.delta else FLOAT32

    @property
    def tf32_products(self) -> int:
        """How many TF32 products make one of float32 operands: 11 bits need one, 24 three."""
        return 3 if self.dtype == "float32" else 1

    @property
    def decay_axes(self) -> str | None:
        """Axes of a decay that is stored per token; None for no decay and decays per head."""
        return {"none": None, "head": None, "scalar": "bth", "channel": "bthk"}[self.decay]


class Access(NamedTuple):
    """A tensor that a kernel reads or writes; both counts are in elements."""

    name: str
    elements: int
    width: int  # bytes per element
    requested: int  # with every load of every program; equals `elements` for writes


def access(name: str, elements: int, width: int) -> Access:
    """A tensor of which every element is loaded or stored exactly once."""
    return Access(name, elements, width, elements)


@dataclass(frozen=True)
class Kernel:
    """One launch. `matmul_flops` run at the 16-bit rate, `tf32_flops` at the TF32 rate."""

    name: str
    direction: Direction
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    matmul_flops: float = 0.0
    tf32_flops: float = 0.0
    vector_ops: float = 0.0

    @property
    def bytes_read(self) -> int:
        return sum(tensor.elements * tensor.width for tensor in self.reads)

    @property
    def bytes_written(self) -> int:
        return sum(tensor.elements * tensor.width for tensor in self.writes)

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def bytes_requested(self) -> int:
        return sum(tensor.requested * tensor.width for tensor in self.reads)

    @property
    def flops(self) -> float:
        """All operations, whichever unit runs them."""
        return self.matmul_flops + self.tf32_flops + self.vector_ops


def bytes_moved(kernels: list[Kernel]) -> int:
    return sum(kernel.bytes_moved for kernel in kernels)


def flops(kernels: list[Kernel]) -> float:
    return sum(kernel.flops for kernel in kernels)


def split(length: int, size: int) -> list[int]:
    """Lengths of the consecutive pieces of at most `size` that make up `length`."""
    return [min(size, length - start) for start in range(0, length, size)]
