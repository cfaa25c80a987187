"""Makes Triton's interpreter compute in bfloat16 as GPUs do.

The interpreter keeps bfloat16 as its 16-bit patterns: products multiply the patterns, and casts
from float32 cut off digits. Here operands are widened first, and casts round to nearest, ties to
even. Nothing else is changed.
"""

from functools import wraps

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 patterns to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 patterns, to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def compute_in_bfloat16() -> None:
    """Patches the interpreter of this process, once."""
    if getattr(InterpreterBuilder, "computes_in_bfloat16", False):
        return
    create_dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    @wraps(create_dot)
    def dot(self, a, b, d, *options):
        a, b = (
            TensorHandle(widen(x.data), tl.float32) if x.dtype.scalar == tl.bfloat16 else x
            for x in (a, b)
        )
        return create_dot(self, a, b, d, *options)

    @wraps(cast)
    def cast_impl(self, src, dst_type):
        types = src.dtype.scalar, dst_type.scalar
        if types == (tl.float32, tl.bfloat16):
            return TensorHandle(narrow(src.data), tl.bfloat16)
        if types == (tl.bfloat16, tl.float32):
            return TensorHandle(widen(src.data), tl.float32)
        return cast(self, src, dst_type)

    InterpreterBuilder.create_dot = dot
    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.computes_in_bfloat16 = True
