"""What every mixer must know about the rows it is given: document numbers and positions.

Rows may hold several packed documents; `segments` numbers them. Convolutions, positions, softmax
masks and the kernels all take the numbers from here, so that no document sees another.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceInfo:
    """Document numbers and positions of one batch of rows, and which kernels mix them.

    segments: int [B, T], non-decreasing along a row, or None when every row is one document.
    positions: int64 [B, T] or [1, T]: tokens since the start of the document.
    kernels: the backend of recurrences and of the layers around them, as in `kernels`.
    block_masks: of flex_attention, by description; see model/flex.py.
    masks_of_blocks: further ones, that only the block of a number uses.
    """

    segments: Tensor | None
    positions: Tensor
    kernels: str = "auto"
    block_masks: dict = field(default_factory=dict, repr=False)
    masks_of_blocks: dict = field(default_factory=dict, repr=False)
    _rotations: dict = field(default_factory=dict, repr=False)
    _ranges: list = field(default_factory=list, repr=False)

    @staticmethod
    def of(
        tokens: Tensor,
        segments: Tensor | None = None,
        last_segment: Tensor | None = None,
        next_position: Tensor | None = None,
        kernels: str = "auto",
    ) -> "SequenceInfo":
        """Builds the description of `tokens` [B, T].

        Args:
            segments: int [B, T] or None.
            last_segment: int [B], the document of the token before these (from a cache).
            next_position: int [B], the position of the first of these if it continues that
                document.
            kernels: "auto", "torch" or "triton".
        """
        length = tokens.shape[1]
        index = torch.arange(length, device=tokens.device)
        if segments is None:
            return SequenceInfo(None, index[None], kernels)
        if length == 0:
            return SequenceInfo(segments, index.expand(tokens.shape), kernels)
        starts = torch.zeros_like(segments, dtype=torch.int64)
        starts[:, 1:] = torch.where(segments[:, 1:] != segments[:, :-1], index[1:], -(2**62))
        if last_segment is not None:
            starts[:, 0] = torch.where(segments[:, 0] == last_segment, -next_position, 0)
        return SequenceInfo(segments, index - torch.cummax(starts, dim=1).values, kernels)

    def pieces(self, length: int) -> Iterator[tuple[slice, "SequenceInfo"]]:
        """Which tokens, and their description, of `length` and fewer tokens at a time."""
        for start in range(0, self.positions.shape[1], length):
            at = slice(start, start + length)
            segments = None if self.segments is None else self.segments[:, at]
            yield at, SequenceInfo(segments, self.positions[:, at], self.kernels)

    def in_block(self, number: int) -> "SequenceInfo":
        """The same for one block of the network: only masks that it uses."""
        if not self.masks_of_blocks:
            return self
        own = self.block_masks | self.masks_of_blocks.get(number, {})
        return replace(self, block_masks=own, masks_of_blocks={})

    def rotation(self, dim: int, base: float) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary angles, float32 [B or 1, T, 1, dim / 2].

        Source: Su et al., 2021, RoFormer. Angles are formed in float64: in lower precisions
        neighbouring positions of long documents fall together.
        """
        key = (dim, base)
        if key not in self._rotations:
            exponent = torch.arange(0, dim, 2, dtype=torch.float64, device=self.positions.device)
            angles = self.positions.double()[..., None] * base ** (-exponent / dim)
            self._rotations[key] = (
                angles.cos().float()[:, :, None],
                angles.sin().float()[:, :, None],
            )
        return self._rotations[key]

    def document_ranges(self) -> list[list[tuple[int, int]]]:
        """For every row the (start, end) of its documents, in order. Reads the tensor's values."""
        if not self._ranges:
            changed = (self.segments[:, 1:] != self.segments[:, :-1]).cpu()
            length = self.segments.shape[1]
            for row in changed:
                cuts = [0, *(row.nonzero().flatten() + 1).tolist(), length]
                self._ranges.append(list(itertools.pairwise(cuts)))
        return self._ranges


def rotate(x_bthd: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turns channel pairs (i, i + R/2), i < R/2, of [B, T, H, D] by the R/2 angles of `rotation`.

    Channels from R on stay as they are.
    """
    cos, sin = rotation
    turned = 2 * cos.shape[-1]
    first, second = x_bthd[..., :turned].float().chunk(2, dim=-1)
    pairs = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    pairs = pairs.to(x_bthd.dtype)
    if turned == x_bthd.shape[-1]:
        return pairs
    return torch.cat((pairs, x_bthd[..., turned:]), dim=-1)
