"""Batched matrix products of working-type tensors with operands rounded to another type.

bfloat16 inputs are multiplied as bfloat16, for which processors have units many times faster than
those for float32. A product is summed in float32 by the library and rounded to bfloat16 once
(torch's CPU products return no other type); whatever it is added to stays in the working type.
With operands of the working type every function is the plain torch call.

Arguments common to all:
    dtype: type of the operands.
    normalize: whether the last value channel is the denominator, which is never rounded.

Axis letters: n matrices, a, b, c rows and columns, V value width.
"""

import torch
from torch import Tensor


def product(x: Tensor, y: Tensor, dtype: torch.dtype, normalize: bool = False) -> Tensor:
    """x [n, a, b] @ y [n, b, c]; with `normalize`, c is V."""
    if x.dtype == dtype:
        return torch.bmm(x, y)
    if not normalize:
        return torch.bmm(x.to(dtype), y.to(dtype)).to(x.dtype)
    return torch.cat([product(x, y[..., :-1], dtype), torch.bmm(x, y[..., -1:])], dim=2)


def store_product(
    target: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype, normalize: bool
) -> None:
    """target [n, a, c] = x @ y, as in `product`."""
    if x.dtype == dtype:
        torch.bmm(x, y, out=target)
    else:
        target.copy_(product(x, y, dtype, normalize))


def add_product(
    target: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype, normalize: bool = False
) -> None:
    """target [n, a, c] += x @ y, as in `product`."""
    if x.dtype == dtype:
        target.baddbmm_(x, y)
    else:
        target.add_(product(x, y, dtype, normalize))


def product_over_values(x: Tensor, y: Tensor, dtype: torch.dtype, normalize: bool) -> Tensor:
    """x [n, a, V] @ y [n, c, V] transposed.

    With `normalize` in the working type: the gradient of a weighted mean is the difference between
    a value and the mean, where numerator and denominator partly cancel. Rounded operands nearly
    doubled the relative error of the queries' gradient, to above 1e-2.
    """
    return torch.bmm(x, y.mT) if normalize else product(x, y.mT, dtype)
