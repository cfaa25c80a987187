"""Multi-query associative recall (MQAR): look up what followed a key, for many keys per row.

A row starts with D pairs "key value"; later on each key comes once more, and is to be answered with
its value. Arora et al., "Zoology" (2023, arXiv 2312.04927) made it to explain why language models
without attention recall less. As published:

- token 0 stands for nothing, the rest of the lower half of the vocabulary are keys, the upper half
  values; a row's keys are different from one another, and so are its values;
- after the 2 D tokens of the pairs come (length - 2 D) / 2 slots of two tokens. Each key is asked
  at the start of a slot of its own. Slots are drawn without replacement with weights a g^(a - 1),
  g = 1, 2, ..: with a = 0.01 about 1 / g, the power law of distances in text;
- the label of a key that is asked is its value, and nothing else has a label.

Other positions hold random tokens (or token 0), as published but for one thing: never one of the
row's keys. In the published vocabulary of 8,192 they hardly ever do, in one of 512 they often
would, and the row would ask with a key that has been followed by two different tokens.

Rows are a pure function of (seed, row number), computed for many rows at once: random numbers are
those of splitmix64 (Steele, Lea and Flood, 2014) from a start per row.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from data.order import mix

IGNORED = -100  # the label of positions without an answer, as torch's cross-entropy has it
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's step


@dataclass(frozen=True)
class Recall:
    """What rows look like.

    length: tokens of a row.  pairs: D.  vocab_size: token ids, keys and values together.
    power: a of the power law.  random_fill: random tokens between the questions, or token 0.

    Raises:
        ValueError: such rows cannot be made.
    """

    length: int
    pairs: int
    vocab_size: int
    power: float = 0.01
    random_fill: bool = True

    def __post_init__(self) -> None:
        if self.pairs < 1 or self.length % 2 or self.length < 4 * self.pairs:
            raise ValueError(
                f"length={self.length}, pairs={self.pairs}: pairs take two tokens each and "
                "questions two more, so that an even length of at least 4 x pairs is needed; give "
                f"length={4 * max(1, self.pairs)} or more, or pairs={max(1, self.length // 4)} or "
                "fewer"
            )
        if self.vocab_size // 2 - 1 < self.pairs:
            raise ValueError(
                f"vocab_size={self.vocab_size}, pairs={self.pairs}: keys are the tokens from 1 to "
                "below vocab_size / 2, and a row's are all different; give "
                f"vocab_size={2 * self.pairs + 2} or more"
            )
        if not self.power > 0:
            raise ValueError(f"power={self.power}: give a number above 0, such as 0.01")


def rows(task: Recall, seed: int, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and labels of the rows with these numbers.

    index: int64 [N], >= 0.  Returns two int64 arrays [N, length]: tokens, and at the position of
    each question the answer; `IGNORED` elsewhere.
    """
    pairs, slots, half = task.pairs, task.length // 2 - task.pairs, task.vocab_size // 2
    counts = (half - 1, task.vocab_size - half, slots, task.length)
    draws = np.split(_uniform(seed, index, sum(counts)), np.cumsum(counts)[:-1], axis=1)
    keys = 1 + _lowest(draws[0], pairs)
    values = half + _lowest(draws[1], pairs)
    # The first to happen of events with rates w: drawn without replacement with the weights w.
    weights = task.power * np.arange(1, slots + 1) ** (task.power - 1)
    asked = 2 * pairs + 2 * _lowest(-np.log1p(-draws[2]) / weights, pairs)
    tokens = _without(keys, draws[3], task.vocab_size) * task.random_fill
    tokens[:, 0 : 2 * pairs : 2] = keys
    tokens[:, 1 : 2 * pairs : 2] = values
    np.put_along_axis(tokens, asked, keys, axis=1)
    labels = np.full_like(tokens, IGNORED)
    np.put_along_axis(labels, asked, values, axis=1)
    return tokens, labels


def _uniform(seed: int, index: np.ndarray, count: int) -> np.ndarray:
    """float64 [N, count] in [0, 1): row n is a function of (seed, index[n]) alone."""
    digest = hashlib.shake_128(f"mqar/{seed}".encode()).digest(8)
    start = mix(mix(np.asarray(index).astype(np.uint64)) ^ np.frombuffer(digest, dtype="<u8"))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return (mix(start[:, None] + steps) >> np.uint64(11)) * 2.0**-53


def _lowest(draws: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` lowest numbers of each row, the lowest first."""
    return np.argsort(draws, axis=1, kind="stable")[:, :count]


def _without(keys: np.ndarray, draws: np.ndarray, vocab_size: int) -> np.ndarray:
    """Tokens that are none of the row's keys, all others equally likely, from `draws` in [0, 1)."""
    pairs = keys.shape[1]
    rank = (draws * (vocab_size - pairs)).astype(np.int64)  # among the tokens that are left
    # Left of sorted key number j are so many other tokens: those from there on move up by one.
    before = np.sort(keys, axis=1) - np.arange(pairs)
    return rank + (rank[:, :, None] >= before[:, None, :]).sum(axis=2)
