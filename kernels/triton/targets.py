"""GPUs that kernels are compiled for without being there, and what the result needs of them."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver


@dataclass(frozen=True)
class Target:
    """A GPU architecture with the limits that decide how many warps a multiprocessor runs.

    Sources: CUDA C++ Programming Guide, table of compute capabilities; AMD CDNA 3 instruction set
    architecture, with a compute unit in the place of a multiprocessor and wavefronts of 64.
    """

    gpu: GPUTarget
    shared_per_program: int
    shared_per_sm: int
    registers_per_sm: int
    warps_per_sm: int
    programs_per_sm: int


TARGETS = {
    "sm_80": Target(GPUTarget("cuda", 80, 32), 163 << 10, 164 << 10, 65536, 64, 32),
    "sm_90": Target(GPUTarget("cuda", 90, 32), 227 << 10, 228 << 10, 65536, 64, 32),
    "sm_100": Target(GPUTarget("cuda", 100, 32), 227 << 10, 228 << 10, 65536, 64, 32),
    "gfx942": Target(GPUTarget("hip", "gfx942", 64), 64 << 10, 64 << 10, 4 * 512 * 64, 32, 16),
}

_TENSOR_CORES = {
    "ptx": r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)\b",
    "amdgcn": r"\bv_mfma_",
}


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel needs. warps: that one multiprocessor can run at once."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    tensor_core_instructions: int
    warps: int
    fits: bool


def resources(program: Any, target: Target) -> Resources:
    """Reads them from the compiled code itself: NVIDIA's cubin, or AMD's assembly."""
    if target.gpu.backend == "cuda":
        registers, spilled = _cubin(program.asm["cubin"])
        text, pattern = program.asm["ptx"], _TENSOR_CORES["ptx"]
    else:
        text, pattern = program.asm["amdgcn"], _TENSOR_CORES["amdgcn"]
        registers = int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1])
        spilled = 4 * int(re.search(r"\.vgpr_spill_count:\s+(\d+)", text)[1])
    shared, num_warps = program.metadata.shared, program.metadata.num_warps
    of_program = num_warps * target.gpu.warp_size * max(8, -(-registers // 8) * 8)
    programs = min(
        target.programs_per_sm,
        target.warps_per_sm // num_warps,
        target.registers_per_sm // of_program,
        target.shared_per_sm // (shared + 1024),  # the system keeps 1 KiB for each program
    )
    return Resources(
        registers,
        spilled,
        shared,
        len(re.findall(pattern, text)),
        programs * num_warps,
        shared <= target.shared_per_program,
    )


def _cubin(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack: what registers spilled to)."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(re.search(r"REG:(\d+)", text)[1]), int(re.search(r"STACK:(\d+)", text)[1])


def cannot_compile() -> str | None:
    """Why this process cannot compile kernels; None if it can."""
    if triton.knobs.runtime.interpret:
        return "TRITON_INTERPRET is set, and the interpreter compiles nothing: unset it"
    return None


@contextmanager
def compile_for(target: Target, recorded: list) -> Iterator[Callable[..., None]]:
    """A launcher that compiles for `target` and appends (kernel, options, program) to `recorded`.

    Raises:
        RuntimeError: Triton's interpreter is on; it does not compile.
    """
    if (reason := cannot_compile()) is not None:
        raise RuntimeError(reason)

    def launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        if target.gpu.backend == "hip":  # as `operand_types` chooses where PyTorch is built for HIP
            tf32 = ("tf32", "tf32x3")
            options = {n: "ieee" if value in tf32 else value for n, value in options.items()}
        program = kernel.warmup(*arguments, grid=(programs,), **options)
        recorded.append((kernel.__name__, options, program))

    before = driver._active
    driver.set_active(_AbsentGPU(target.gpu))
    try:
        yield launch
    finally:
        driver._active = before


class _AbsentGPU(DriverBase):
    """Answers what Triton asks its driver before it compiles."""

    def __init__(self, gpu: GPUTarget) -> None:
        self.gpu = gpu

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.gpu

    def get_current_device(self) -> str:
        return str(self.gpu)

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing can be timed on a GPU that is not here")
