"""Constants that a 16-bit model must not round."""

import torch
from torch import nn


class Float32Buffers(nn.Module):
    """A module whose own float32 buffers move with the model and keep their type.

    Buffers, and not plain numbers: blocks that differ only in them then share a compiled program.
    """

    def _apply(self, fn, recurse=True):
        kept = {name: value for name, value in self._buffers.items() if value.is_floating_point()}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            moved = self._buffers[name]
            if moved.dtype != torch.float32:
                self._buffers[name] = value.to(moved.device)
        return self
