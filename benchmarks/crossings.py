"""From which length on one curve is below another, interpolated between measured lengths."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Crossing:
    """Where a mixer overtakes softmax attention for good, as far as was measured.

    tokens: the length, None where it is outside of the measured range.
    shortest, longest: that range.
    below: without a crossing, whether the mixer is ahead from the shortest length on.
    """

    tokens: float | None
    shortest: int
    longest: int
    below: bool = False

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens:,.0f}"
        return f"< {self.shortest:,}" if self.below else f"none to {self.longest:,}"

    def per(self, head_dim: int) -> str:
        """The same with n / d."""
        if self.tokens is not None:
            return f"{self} ({self.tokens / head_dim:.1f} d)"
        bound = self.shortest if self.below else self.longest
        return f"{self} ({bound / head_dim:g} d)"


def crossing(curve: dict[int, float], softmax: dict[int, float]) -> Crossing | None:
    """Where `curve` falls below `softmax` and stays there, at the lengths that both have.

    The logarithm of their ratio is taken to be linear in the logarithm of the length between two
    lengths. If it changes sign several times, the last change counts: before it, being ahead was a
    matter of luck or of the machine. None without a common length.
    """
    lengths = sorted(curve.keys() & softmax.keys())
    if not lengths:
        return None
    behind = {n: math.log(curve[n] / softmax[n]) for n in lengths}
    ends = lengths[0], lengths[-1]
    if behind[lengths[-1]] >= 0:
        return Crossing(None, *ends)
    slower = [n for n in lengths if behind[n] >= 0]
    if not slower:
        return Crossing(None, *ends, below=True)
    left = slower[-1]
    right = lengths[lengths.index(left) + 1]
    share = behind[left] / (behind[left] - behind[right])
    return Crossing(left * (right / left) ** share, *ends)
