"""The decoding cache: one state per block, and where each row stands.

Linear mixers keep a state of constant size, windows their last tokens, full softmax attention all
keys and values. A cache is never changed in place: a forward pass returns a new one, so that one
prefilled cache may be continued in several ways.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cache:
    """What a model carries from the tokens it has seen to the next ones.

    states: one entry per block, (nested) named tuples of tensors [B, ...].
    segment: int64 [B], the document number of the last token.
    next_position: int64 [B], tokens of that document seen so far.
    draws: which random features filled it, of all maps that have some.
    """

    states: tuple[Any, ...]
    segment: Tensor
    next_position: Tensor
    draws: tuple[int, ...] = ()

    def reorder(self, rows: Tensor) -> "Cache":
        """The cache whose row i is this cache's row `rows[i]` (beam search, batch selection)."""
        return self._map(lambda x: x.index_select(0, rows))

    def nbytes(self) -> int:
        """Bytes of all the tensors that are carried."""
        sizes: list[int] = []
        self._map(lambda x: sizes.append(x.numel() * x.element_size()) or x)
        return sum(sizes)

    def compact(self) -> "Cache":
        """The same with copies of what are small parts of larger tensors.

        The last keys of a long prompt, or its last maximum, would otherwise keep all of the
        prompt's in memory for as long as the cache lives.
        """
        return self._map(_copy_of_a_part)

    def truncate(self, tokens: int) -> "Cache":
        """Refused: recurrent and window states cannot forget their last tokens."""
        raise ValueError(
            f"a hybrid cache cannot be rolled back by {tokens} tokens: recurrent states do not "
            "hold what came before; keep the earlier cache (it is never changed) and continue it"
        )

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Cache":
        return Cache(
            _map_tensors(self.states, function),
            function(self.segment),
            function(self.next_position),
            self.draws,
        )


def _copy_of_a_part(x: Tensor) -> Tensor:
    # Up to twice its size is no prompt: a step's window is one token shorter than what it read.
    held = x.untyped_storage().nbytes()
    return x.clone() if held > 2 * x.numel() * x.element_size() else x


def _map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        items = [_map_tensors(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    assert value is None, type(value)
    return None


def advance(info_segments: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The (segment, next_position) of a cache after rows with these numbers [B, T], T >= 1."""
    last = info_segments[:, -1].to(torch.int64)
    return last, positions.expand(info_segments.shape)[:, -1] + 1
