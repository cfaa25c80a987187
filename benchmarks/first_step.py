"""python -m benchmarks.first_step Braid gla 128: seconds of the first training step on this GPU.

Forward and backward at the shape of the targets, compilation and searches included, imports and the
start of CUDA not. `python -m benchmarks.kernels` runs it in a process of its own with an empty
compilation cache. Prints the seconds.
"""

import sys
import time

import torch

from benchmarks import fla_ops
from benchmarks.kernel_calls import FLA, make_calls, make_inputs
from benchmarks.kernel_cases import TARGET_LENGTH, case


def main(arguments: list[str], device: str = "cuda", backend: str = "triton") -> None:
    library, op, width = arguments
    shape = case(op, TARGET_LENGTH, int(width))
    fla = fla_ops.chunked_ops() if library == FLA else {}
    call = make_calls(shape, make_inputs(shape, device), fla, backend)[library]
    torch.accelerator.synchronize()
    start = time.perf_counter()
    call.training()
    torch.accelerator.synchronize()
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(sys.argv[1:])
