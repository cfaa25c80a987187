"""Few cases in which every two values of two factors meet at least once."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

CANDIDATES = 40


def pairwise(factors: dict[str, list[Any]], seed: int = 0) -> Iterator[dict[str, Any]]:
    """Greedy: every next case is the best of CANDIDATES random ones through an open pair."""
    rng = random.Random(seed)
    names = list(factors)
    open_pairs = {
        (a, x, b, y)
        for a, b in itertools.combinations(range(len(names)), 2)
        for x in range(len(factors[names[a]]))
        for y in range(len(factors[names[b]]))
    }
    while open_pairs:
        a, x, b, y = min(open_pairs)
        best, most = None, -1
        for _ in range(CANDIDATES):
            case = [rng.randrange(len(factors[name])) for name in names]
            case[a], case[b] = x, y
            covered = _pairs(case) & open_pairs
            if len(covered) > most:
                best, most = case, len(covered)
        open_pairs -= _pairs(best)
        yield {name: factors[name][value] for name, value in zip(names, best, strict=True)}


def _pairs(case: list[int]) -> set[tuple[int, int, int, int]]:
    return {(a, case[a], b, case[b]) for a, b in itertools.combinations(range(len(case)), 2)}
