"""Prints how many programs are compiled after each of three calls of a kernel with a search.

Run in a process of its own: the tests interpret Triton, and this compiles for a GPU that is absent.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner

from benchmarks.fla_ops import searches_compiled_side_by_side
from kernels.triton.targets import TARGETS, compile_for


@triton.autotune(configs=[triton.Config({"BLOCK": n}, num_warps=1) for n in (16, 32)], key=["SIZE"])
@triton.jit
def copy(x, y, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < SIZE), mask=at < SIZE)


if __name__ == "__main__":
    Autotuner.run = lambda self, *arguments, **options: None  # the search itself needs a GPU
    compiled = []
    triton.knobs.runtime.jit_post_compile_hook = lambda **about: compiled.append(about["key"])
    x = torch.empty(64, device="meta")
    with compile_for(TARGETS["sm_90"], []), searches_compiled_side_by_side(2):
        for size in (8, 8, 24):
            copy[(1,)](x, x, SIZE=size)
            print(len(compiled))
