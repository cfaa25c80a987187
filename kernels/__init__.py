"""Chunked linear-time recurrences: one public function, a step-by-step oracle, fast backends.

`linear_attention` and the state it carries are the whole public surface.
"""

from kernels.api import linear_attention
from kernels.state import LinearState

__all__ = ["LinearState", "linear_attention"]
