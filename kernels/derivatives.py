"""Backward passes that are written by hand know the first derivative alone, and say so."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def refuse_second_derivative(function: str, instead: str = "") -> None:
    """To be called first in such a backward pass.

    Its results would count as constants, or its steps in place would fail somewhere in autograd.

    Raises:
        RuntimeError: the caller wants to differentiate the gradients again (create_graph=True).
    """
    # A compiler traces the backward with gradients enabled whatever the caller wants; its programs
    # refuse a second derivative by themselves.
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{function} has first derivatives only, and create_graph=True asks for gradients that "
            f"can be differentiated again: use create_graph=False{instead}"
        )


def refuse_transforms(function: str, tensors: tuple[Tensor | None, ...], instead: str) -> None:
    """To be called before operators that reverse mode alone can differentiate.

    Where forward mode meets them, it takes their results for constants and says nothing.

    Raises:
        ValueError: the call is inside of a torch.func transform, or an input carries a tangent.
    """
    if torch.compiler.is_compiling():
        return  # compilers cannot look, and their programs refuse what is not traced
    if torch._C._are_functorch_transforms_active():
        raise ValueError(
            f"{function} does not work under torch.func (grad, vmap, jvp ...): {instead}"
        )
    inside = forward_ad._current_level >= 0
    if inside and any(x is not None and _tangent(x) is not None for x in tensors):
        raise ValueError(f"{function} has no forward-mode derivatives: {instead}")


def _tangent(x: Tensor) -> Tensor | None:
    return forward_ad.unpack_dual(x).tangent
