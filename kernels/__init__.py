"""Chunked linear-time recurrences: one public function, a step-by-step oracle, fast backends.

`linear_attention` and the state it carries, and the layers around it (`short_conv`, `gated_norm`,
`rms_norm`), are the whole public surface.
"""

from kernels.api import linear_attention
from kernels.convolution import short_conv
from kernels.norms import gated_norm, rms_norm
from kernels.state import LinearState

__all__ = ["LinearState", "gated_norm", "linear_attention", "rms_norm", "short_conv"]
