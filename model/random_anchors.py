"""Random anchors: a fixed number of keys behind the window, a sample of all that have left it.

A reservoir of n places. The tokens of a document, the first `anchors` apart, are candidates 0, 1,
2, .. in order, each at the moment when it leaves the window. Candidate r is decided on for place r
mod n alone, which it takes from an earlier one with the probability that makes each of that place's
candidates so far as likely to hold it (1 / (r div n + 1); Vitter, 1985, with one item). So every
query sees the same n anchors as all others at its position, spread evenly at random over what is
behind its window, and n of them however long the document is.

Who takes which place from whom depends on (seed, block number) alone, never on the text or on its
length: packed, in pieces or token by token, a document has the same anchors. Changes are ever
rarer, about n (1 + ln(T / n)) in T tokens, so that those of the longest document fit into a small
table. The next one after candidate number j of a place is floor((j + 1) / u), u uniform in (0, 1).
"""

import hashlib
from functools import lru_cache

import torch
from torch import Tensor, nn

NEVER = 2**62
_LONGEST = 2**31  # tokens of a document
_CHANGES = 64  # most that hold one place in turn; 22 are expected where n = 1, fewer else


class RandomAnchors(nn.Module):
    """The reservoir of one mixer, as tables that are looked up by candidate number."""

    def __init__(self, places: int, seed: int, block: int) -> None:
        super().__init__()
        self.places, self.seed, self.block = places, seed, block
        self.register_buffer("contents", self._table(places, _CHANGES), persistent=False)
        for name in ("joining", "leaving", "replacing"):
            self.register_buffer(name, self._table(places * _CHANGES), persistent=False)
        self.init_weights()

    @staticmethod
    def _table(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64)

    def init_weights(self) -> None:
        """Fills the tables: of each place its candidates, and of each such candidate, in order,
        which one replaces it (`NEVER`: none) and which one it replaces (-1: none)."""
        turns = changes(self.places, self.seed, self.block)
        rows = [[*held, *[NEVER] * (_CHANGES - len(held))] for held in turns]
        contents = torch.tensor(rows, device="cpu")
        joining, order = contents.flatten().sort()
        after = torch.cat((contents[:, 1:], contents[:, -1:]), dim=1)
        before = torch.cat((torch.full_like(contents[:, :1], -1), contents[:, :-1]), dim=1)
        self.contents.copy_(contents)
        self.joining.copy_(joining)
        self.leaving.copy_(after.flatten()[order])
        self.replacing.copy_(before.flatten()[order])

    def extra_repr(self) -> str:
        return f"places={self.places}, seed={self.seed}, block={self.block}"

    def stay(self, candidate: Tensor) -> Tensor:
        """For how many candidates, from itself on, each one has a place; 0: it never joins."""
        at, joins = self._find(candidate)
        return torch.where(joins, self.leaving[at] - candidate, 0)

    def displaced(self, candidate: Tensor) -> Tensor:
        """Which candidate has no place after `candidate` was decided on, and had one, or was asked.

        Itself, if it does not join; the one whose place it takes; -1 if that was free.
        """
        at, joins = self._find(candidate)
        return torch.where(joins, self.replacing[at], candidate)

    def held(self, candidate: Tensor) -> Tensor:
        """The candidates [.., places] that have the places once `candidate` was decided on.

        -1: the place is free.
        """
        asked = candidate.reshape(1, -1).expand(self.places, -1).contiguous()
        turn = torch.searchsorted(self.contents, asked, right=True) - 1
        found = self.contents.gather(1, turn.clamp(min=0)).masked_fill(turn < 0, -1)
        return found.T.reshape(*candidate.shape, self.places)

    def _find(self, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Where candidates stand in the tables of those that join, and whether they do."""
        at = torch.searchsorted(self.joining, candidate.contiguous())
        at = at.clamp(max=len(self.joining) - 1)
        return at, self.joining[at] == candidate


@lru_cache(maxsize=1024)
def changes(places: int, seed: int, block: int) -> tuple[tuple[int, ...], ...]:
    """For every place of the reservoir the candidates that hold it in turn, up to 2^31.

    In whole numbers, which are the same on every machine.
    """
    held = []
    for place in range(places):
        turns, j = [], 0
        while (candidate := j * places + place) < _LONGEST:
            turns.append(candidate)
            digest = hashlib.sha256(f"{seed} {block} {place} {len(turns)}".encode()).digest()
            u = 2 * int.from_bytes(digest[:8], "big") + 1  # of 2^65
            j = ((j + 1) << 65) // u
        assert len(turns) < _CHANGES
        held.append(tuple(turns))
    return tuple(held)
