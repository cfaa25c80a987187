"""Before a training run on a GPU: do its kernels compute the right values on this machine?"""

import torch

from kernels.check import KernelError, check_model_kernels
from model.mixers.linear import LinearMixer
from model.network import LanguageModel


def check_kernels(model: LanguageModel, precision: str, device: torch.device) -> None:
    """Compares the Triton kernels that `model` will launch with the float64 recurrence.

    Takes seconds, and compiles what training needs anyway. Does nothing on a CPU, whose backend is
    plain PyTorch.

    Raises:
        SystemExit: they do not; with what is wrong, and what to do.
    """
    if device.type != "cuda":
        return
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    mixers = [module for module in model.modules() if isinstance(module, LinearMixer)]
    try:
        check_model_kernels({mixer.kernel_shape() for mixer in mixers}, dtype, str(device))
    except KernelError as error:
        raise SystemExit(f"Error: {error}") from error
