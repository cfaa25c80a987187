"""What every public function asks of its tensors before it may ask for their shapes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_SIGNED_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def check_dense(required: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Every value is a dense tensor with data, or None where it is optional.

    Raises:
        ValueError: one is not, with its name.
    """
    for name, tensor in (*required.items(), *optional.items()):
        if tensor is None and name in optional:
            continue
        if not isinstance(tensor, Tensor):
            allowed = "a torch.Tensor or None" if name in optional else "a torch.Tensor"
            raise ValueError(f"{name} must be {allowed}, got {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout != torch.strided:
            layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise ValueError(f"{name} is a {layout} tensor; it must be dense: pass .to_dense()")


def check_numbers(name: str, tensor: Tensor) -> None:
    """Document numbers are signed: torch does not compare the wide unsigned ones.

    Raises:
        ValueError: they are of another type.
    """
    if tensor.dtype not in _SIGNED_INTEGERS:
        raise ValueError(
            f"{name} is {tensor.dtype}; it must be a signed integer tensor: pass .long()"
        )


def check_flag(name: str, value: Any) -> None:
    """Raises: ValueError: value is not a Python bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r:.40}")
