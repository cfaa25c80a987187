"""Before a training run on a GPU: do its kernels compute the right values on this machine?"""

import torch

from kernels.check import KernelError, check_model_kernels
from model.layers import ShortConv
from model.mixers.linear import LinearMixer
from model.network import LanguageModel


def check_kernels(model: LanguageModel, precision: str, device: torch.device) -> None:
    """Compares the Triton kernels that `model` will launch with float64.

    Takes seconds, and compiles what training needs anyway. Does nothing on a CPU, whose backend is
    plain PyTorch.

    Raises:
        SystemExit: they do not; with what is wrong, and what to do.
    """
    if device.type != "cuda":
        return
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    mixers = {m.kernel_shape() for m in model.modules() if isinstance(m, LinearMixer)}
    layers = {
        shape
        for m in model.modules()
        if isinstance(m, LinearMixer | ShortConv)
        for shape in m.layer_shapes()
    }
    try:
        check_model_kernels(mixers, dtype, str(device), layers)
    except KernelError as error:
        raise SystemExit(f"Error: {error}") from error
