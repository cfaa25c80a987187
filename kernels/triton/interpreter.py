"""Makes Triton's interpreter round as GPUs do.

The interpreter keeps bfloat16 as its 16-bit patterns: products multiply the patterns, and casts
from float32 cut off digits. Here operands are widened first, and casts round to nearest, ties to
even. Products of float32 in single TF32 precision, which the interpreter multiplies in full, cut
off what tensor cores ignore: Triton 3.7 compiles no rounding for them. Nothing else is changed.
"""

from functools import wraps

import numpy as np
import triton.language as tl
from triton._C.libtriton.ir import INPUT_PRECISION
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 patterns to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 patterns, to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def truncate(values: np.ndarray) -> np.ndarray:
    """float32 with the 10 bits of TF32 after the leading one."""
    return (np.ascontiguousarray(values).view(np.uint32) & 0xFFFFE000).view(np.float32)


def round_as_gpus() -> None:
    """Patches the interpreter of this process, once."""
    if getattr(InterpreterBuilder, "rounds_as_gpus", False):
        return
    create_dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    @wraps(create_dot)
    def dot(self, a, b, d, input_precision, *options):
        def operand(x):
            if x.dtype.scalar == tl.bfloat16:
                return TensorHandle(widen(x.data), tl.float32)
            if x.dtype.scalar == tl.float32 and input_precision == INPUT_PRECISION.TF32:
                return TensorHandle(truncate(x.data), tl.float32)
            return x

        return create_dot(self, operand(a), operand(b), d, input_precision, *options)

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
    InterpreterBuilder.rounds_as_gpus = True
