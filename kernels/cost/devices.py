"""Peaks of the accelerators, and the shortest time in which one could run a kernel.

Dense peaks; NVIDIA prints the doubled figure for 2:4 sparsity, which is halved here. Sources:
A100 datasheet (2021), H100 datasheet (2023), H200 datasheet (2024), and for B200 the DGX B200
datasheet and the HGX platform page (2025), whose figures are for eight GPUs.
"""

from dataclasses import dataclass

from kernels.cost.accounting import Kernel


@dataclass(frozen=True)
class Device:
    """Bytes and floating-point operations per second."""

    name: str
    bandwidth: float
    matmul: float  # bfloat16 tensor cores
    tf32: float  # TF32 tensor cores
    vector: float  # float32 outside the tensor cores


DEVICES = (
    Device("A100 80GB SXM", 2.039e12, 312e12, 156e12, 19.5e12),
    Device("H100 SXM", 3.35e12, 989.5e12, 494.5e12, 67e12),
    Device("H200 SXM", 4.8e12, 989.5e12, 494.5e12, 67e12),
    Device("B200", 8.0e12, 2250e12, 1125e12, 75e12),
)


def floor_seconds(kernel: Kernel, device: Device) -> tuple[float, str]:
    """The time below which the kernel cannot finish, and the unit that sets it.

    Memory, tensor cores and vector units are taken to work at their peaks and fully at the same
    time, so a real kernel is slower.
    """
    times = {
        "memory": kernel.bytes_moved / device.bandwidth,
        "tensor": kernel.matmul_flops / device.matmul + kernel.tf32_flops / device.tf32,
        "vector": kernel.vector_ops / device.vector,
    }
    bound = max(times, key=lambda unit: times[unit])
    return times[bound], bound


def total_seconds(kernels: list[Kernel], device: Device) -> float:
    """Kernels run one after another, so their floors add up."""
    return sum(floor_seconds(kernel, device)[0] for kernel in kernels)
