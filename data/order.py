"""Which window a training sample is: a pure function of (seed, sample number).

Sample numbers count over the whole run, from 0. With N windows in the training split, sample s lies
in epoch s // N and is window permutation(s % N) of that epoch. Every epoch therefore holds every
window exactly once, and nothing has to be stored or replayed to continue from any sample.

The permutation is a Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations
from pseudorandom functions", 1988) on the smallest even number of bits that can hold N. Numbers of
N or more are sent through the network again until they fall below N ("cycle walking": Black and
Rogaway, "Ciphers with arbitrary finite domains", 2002); the domain is less than 4 N, so that takes
less than 4 passes on average. The round function is the finaliser of splitmix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014).

The global batch of optimizer step n is samples [n B, (n + 1) B), B rows in all; rank r of W takes
the r-th of W equal consecutive parts. So it is the same for any number of ranks, loader processes
and micro-batches, and after any restart.
"""

import hashlib

import numpy as np

ROUNDS = 8


def window(sample: np.ndarray, size: int, seed: int, *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Epoch and window index of each sample number.

    sample: int64, any shape, >= 0.  size: number of windows.  names: tell orders with one seed
    apart.  Returns two int64 arrays of its shape. Raises ValueError if a sample number is negative
    or there is no window.
    """
    sample = np.asarray(sample, dtype=np.int64)
    if size < 1 or (sample < 0).any():
        raise ValueError(f"Sample numbers start at 0 and size at 1; got {sample} and size {size}.")
    epoch, place = np.divmod(sample, size)
    index = np.empty_like(place)
    for number in np.unique(epoch):
        chosen = epoch == number
        index[chosen] = permutation(place[chosen], size, (seed, int(number), *names))
    return epoch, index


def permutation(index: np.ndarray, size: int, key: tuple[int | str, ...]) -> np.ndarray:
    """Image of each index under a permutation of [0, size); `key`, as (seed, epoch), picks it.

    index: int64, any shape, in [0, size).  Returns int64 of its shape.
    Raises ValueError if an index is outside.
    """
    index = np.asarray(index, dtype=np.int64)
    if ((index < 0) | (index >= size)).any():
        raise ValueError(f"An index is outside [0, {size}): {index}.")
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    keys = _round_keys(key)
    values = _feistel(index.astype(np.uint64).ravel(), half, keys)
    while (outside := values >= np.uint64(size)).any():
        values[outside] = _feistel(values[outside], half, keys)
    return values.astype(np.int64).reshape(index.shape)


def batch_samples(step: int, batch_size: int, rank: int, world: int) -> np.ndarray:
    """Sample numbers of one rank at one optimizer step, int64 [batch_size / world].

    batch_size: rows over all ranks. Raises ValueError if the ranks cannot share it equally.
    """
    if batch_size < 1 or batch_size % world:
        raise ValueError(
            f"A batch of {batch_size} rows cannot be shared equally by {world} ranks. "
            f"Use a batch that is a multiple of {world} rows."
        )
    if not 0 <= rank < world:
        raise ValueError(f"Rank {rank} is outside [0, {world}).")
    rows = batch_size // world
    return step * batch_size + rank * rows + np.arange(rows, dtype=np.int64)


def _feistel(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & mask)
    return left << half | right


def mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64, uint64 of any shape: close numbers become unrelated ones."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _round_keys(key: tuple[int | str, ...]) -> np.ndarray:
    digest = hashlib.shake_128("/".join(map(str, key)).encode()).digest(8 * ROUNDS)
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
