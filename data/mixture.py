"""Which source a sample comes from, and which of that source's samples it is: a pure function.

Shares are whole numbers. With W their sum, the choice of sources repeats every W samples, and each
source has its share of every such round: sample s is slot s mod W of round s // W. So both
directions, from a sample to its place in a source and from a number of samples to what each source
gave, are a division and a look-up, for any s and without rounding.

Within a round, the j-th sample of a source with share w may not come before slot
floor((j - 1) W / w) and must not come after slot ceil(j W / w) - 1; of those that may come, the one
that must come first does. A schedule that keeps all these bounds exists, and earliest deadline
first finds it (Steiner and Yeomans, "Level schedules for mixed-model, just-in-time processes",
1993). After n samples every source has therefore given less than one sample more or less than
n w / W.
"""

import heapq
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

MOST_SLOTS = 1 << 16
"""Longest round. Weights that need a longer one are rounded to multiples of 1 / MOST_SLOTS."""


class Interleave:
    """Shares out sample numbers.

    shares: whole numbers >= 0, one per source, of which one is positive; their sum is the length
    of a round, at most `MOST_SLOTS`.
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = tuple(shares)
        assert min(shares) >= 0, shares
        assert 0 < sum(shares) <= MOST_SLOTS, shares
        self._slots = _schedule(shares)
        # How many of a slot's source came before it in the round.
        self._before = np.empty_like(self._slots)
        for source in range(len(shares)):
            chosen = self._slots == source
            self._before[chosen] = np.arange(int(chosen.sum()))

    def of(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Source of each sample, and its number among that source's samples; int64, any shape."""
        turn, slot = np.divmod(np.asarray(sample, dtype=np.int64), len(self._slots))
        source = self._slots[slot].astype(np.int64)
        return source, turn * np.asarray(self.shares, dtype=np.int64)[source] + self._before[slot]

    def counts(self, samples: int) -> list[int]:
        """How many of the first `samples` samples come from each source."""
        turns, rest = divmod(samples, len(self._slots))
        given = np.bincount(self._slots[:rest], minlength=len(self.shares))
        return [turns * share + int(n) for share, n in zip(self.shares, given, strict=True)]


def whole_shares(weights: Sequence[float | int | Fraction]) -> list[int]:
    """The smallest whole numbers in the proportion of `weights`, as they are written in decimals.

    Where their sum would be more than `MOST_SLOTS`, they are rounded to that sum by the method of
    largest remainders, which moves no weight by more than 1 / MOST_SLOTS of the whole.

    Raises:
        ValueError: a positive weight is so small that it is rounded to 0; names its number.
    """
    exact = [w if isinstance(w, Fraction) else Fraction(str(w)) for w in weights]
    scale = lcm(*(w.denominator for w in exact))
    whole = [int(w * scale) for w in exact]
    divisor = gcd(*whole)
    whole = [w // divisor for w in whole]
    total = sum(whole)
    if total <= MOST_SLOTS:
        return whole
    shares = [w * MOST_SLOTS // total for w in whole]
    by_remainder = sorted(range(len(whole)), key=lambda i: (-(whole[i] * MOST_SLOTS % total), i))
    for i in by_remainder[: MOST_SLOTS - sum(shares)]:
        shares[i] += 1
    for number, (weight, share) in enumerate(zip(whole, shares, strict=True)):
        if weight and not share:
            raise ValueError(f"weight {number} is less than 1/{MOST_SLOTS} of all weights")
    return shares


def _schedule(shares: Sequence[int]) -> np.ndarray:
    """The source of each slot of a round."""
    total = sum(shares)
    waiting = [(0, source) for source, share in enumerate(shares) if share]
    heapq.heapify(waiting)
    ready: list[tuple[int, int]] = []
    done = [0] * len(shares)
    slots = np.empty(total, dtype=np.int32)
    for slot in range(total):
        while waiting and waiting[0][0] <= slot:
            source = heapq.heappop(waiting)[1]
            heapq.heappush(ready, (-(-(done[source] + 1) * total // shares[source]), source))
        deadline, source = heapq.heappop(ready)
        assert slot < deadline
        slots[slot] = source
        done[source] += 1
        if done[source] < shares[source]:
            heapq.heappush(waiting, (done[source] * total // shares[source], source))
    return slots
