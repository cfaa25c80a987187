"""Backward passes that are written by hand know the first derivative alone, and say so."""

import torch


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
