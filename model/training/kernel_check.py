"""Before a training run on a GPU: do its kernels compute the right values on this machine?"""

import torch

from kernels.check import KernelError, check_model_kernels
from kernels.convolution import MOST_TAPS
from kernels.triton.blocks import MOST_DELTA_KEYS
from kernels.triton_backend import unavailable
from model.layers import ShortConv
from model.mixers.linear import LinearMixer
from model.mixers.sparse_linear import SparseLinearMixer
from model.network import LanguageModel


def check_kernels(model: LanguageModel, precision: str, device: torch.device) -> None:
    """Compares the Triton kernels that `model` will launch with float64.

    Takes seconds, and compiles what training needs anyway. Does nothing where plain PyTorch runs:
    on a CPU, or when that is asked for.

    Raises:
        SystemExit: they do not; with what is wrong, and what to do.
    """
    if device.type != "cuda" or model.kernels == "torch":
        return
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    mixers = {m.kernel_shape() for m in model.modules() if isinstance(m, LinearMixer)}
    layers = {
        shape
        for m in model.modules()
        if isinstance(m, LinearMixer | ShortConv)
        for shape in m.layer_shapes()
    }
    in_float32 = {m.kernel_shape() for m in model.modules() if isinstance(m, SparseLinearMixer)}
    try:
        check_model_kernels(mixers, dtype, str(device), layers)
        if in_float32:
            check_model_kernels(in_float32, torch.float32, str(device))
    except KernelError as error:
        raise SystemExit(f"Error: {error}") from error


def check_choice(model: LanguageModel, kernels: str, device: torch.device) -> None:
    """Whether `trainer.kernels` can be had for this model on this device.

    Raises:
        ValueError: it cannot; with the reason, and what to type.
    """
    if kernels != "triton":
        return
    reasons = []
    if (reason := unavailable(device.type)) is not None:
        reasons.append(reason)
    for module in model.modules():
        if isinstance(module, LinearMixer):
            family, keys, *_ = module.kernel_shape()
            if family.startswith("delta") and keys > MOST_DELTA_KEYS:
                reasons.append(
                    f"has kernels of write=delta for at most {MOST_DELTA_KEYS} key channels of a "
                    f"head, and here they are {keys}: make heads smaller"
                )
        elif isinstance(module, ShortConv) and module.width > MOST_TAPS:
            reasons.append(
                f"has kernels up to conv_width={MOST_TAPS}, and here it is {module.width}: lower it"
            )
    if reasons:
        raise ValueError(f"trainer.kernels=triton {reasons[0]}, or use trainer.kernels=auto")
