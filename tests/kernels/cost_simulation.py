"""The kernels' loads and products one by one, as their source orders them, for one row of one head.

What one step of a loop loads twice counts once, as in the accounting that is compared with this.
"""

from itertools import pairwise, product

import numpy as np

from kernels.cost.accounting import Shape
from kernels.cost.plan import CHUNK, TILE, block_sizes


class Simulation:
    """Counts the loads of every element and the FLOPs of every product of one kernel."""

    def __init__(self, shape: Shape, kernel: str) -> None:
        self.shape = shape
        keys, values = block_sizes(kernel.removesuffix(", reverse"), shape)
        self.key_blocks = blocks(shape.key_width, keys)
        self.value_blocks = blocks(shape.value_width, values)
        self.counts, self.flops = {}, 0

    def load(self, name: str, *where) -> None:
        shape = self.shape
        chunks = -(-shape.length // CHUNK)
        if name == "do" and shape.normalize:
            name = "d numerator"
        if name == "decay" and shape.decay == "scalar":
            where = where[:1]
        if name == "decay" and shape.decay in ("none", "head"):
            return
        if ("key sum" in name or name == "d denominators") and not shape.normalize:
            return
        sizes = {"t": shape.length, "k": shape.key_width, "v": shape.value_width, "c": chunks}
        axes = {"q": "tk", "k": "tk", "v": "tv", "do": "tv", "d numerator": "tv"}
        axes |= {"decay": "tk"[: len(where)], "d denominators": "t"}
        default = "ckv" if "state" in name else "ck"
        size = [sizes[axis] for axis in axes.get(name, default)]
        self.counts.setdefault(name, np.zeros(size, np.int64))[where] += 1

    def dot(self, rows: int, inner: int, columns: int, times: int = 1) -> None:
        self.flops += times * 2 * rows * inner * columns

    def pass_tile(self, tile, keys, values, backward=False) -> None:
        """A step of a state, or with `backward` of its gradient, past a tile."""
        self.load("q" if backward else "k", tile, keys)
        self.load("do" if backward else "v", tile, values)
        self.load("decay", tile, keys)
        if backward:
            self.load("d denominators", tile)
        self.dot(size(keys), TILE, size(values))


def simulate(shape: Shape) -> dict[str, Simulation]:
    """Every kernel that multiplies, program by program, for one row of one head."""
    names = ("chunk_states", "chunk_states, reverse", "outputs", "value_gradients")
    result = {name: Simulation(shape, name) for name in (*names, "key_query_gradients")}
    for number, chunk in enumerate(blocks(shape.length, CHUNK)):
        tiles = blocks(size(chunk), TILE, chunk.start)
        simulate_chunk_states(result["chunk_states"], tiles, backward=False)
        simulate_chunk_states(result["chunk_states, reverse"], tiles, backward=True)
        for place, tile in enumerate(tiles):
            earlier, later = tiles[:place], tiles[place + 1 :]
            simulate_outputs(result["outputs"], number, tile, earlier)
            simulate_value_gradients(result["value_gradients"], number, tile, later)
            simulate_key_query_gradients(
                result["key_query_gradients"], number, tile, earlier, later
            )
    return result


def simulate_chunk_states(kernel, tiles, backward):
    for keys, values in product(kernel.key_blocks, kernel.value_blocks):
        for tile in tiles:
            kernel.pass_tile(tile, keys, values, backward)


def simulate_scores(kernel, tile):
    channel = kernel.shape.decay == "channel"
    for keys in kernel.key_blocks:
        kernel.load("q", tile, keys)
        kernel.load("k", tile, keys)
        if channel:
            kernel.load("decay", tile, keys)
        kernel.dot(TILE, size(keys), TILE, times=6 if channel else 1)
    if not channel:
        kernel.load("decay", tile)


def simulate_outputs(kernel, chunk, tile, earlier):
    for values in kernel.value_blocks:
        simulate_scores(kernel, tile)
        kernel.load("v", tile, values)
        kernel.dot(TILE, TILE, size(values))
        for keys in kernel.key_blocks:
            kernel.load("states at starts", chunk, keys, values)
            kernel.load("key sums at starts", chunk, keys)
            for other in earlier:
                kernel.pass_tile(other, keys, values)
            kernel.load("decay", tile, keys)
            kernel.load("q", tile, keys)
            kernel.dot(TILE, size(keys), size(values))


def simulate_value_gradients(kernel, chunk, tile, later):
    for values in kernel.value_blocks:
        simulate_scores(kernel, tile)
        kernel.load("do", tile, values)
        kernel.dot(TILE, TILE, size(values))
        for keys in kernel.key_blocks:
            kernel.load("state gradients at ends", chunk, keys, values)
            for other in later:
                kernel.load("q", other, keys)
                kernel.load("do", other, values)
                kernel.load("decay", other, keys)
                kernel.dot(size(keys), TILE, size(values))
            kernel.load("decay", tile, keys)
            kernel.load("k", tile, keys)
            kernel.dot(TILE, size(keys), size(values))


def simulate_key_query_gradients(kernel, chunk, tile, earlier, later):
    decay = kernel.shape.decay
    for keys in kernel.key_blocks:
        kernel.load("q", tile, keys)
        kernel.load("k", tile, keys)
        for values in kernel.value_blocks:
            kernel.load("v", tile, values)
            kernel.load("do", tile, values)
            kernel.dot(TILE, size(values), TILE)
        kernel.load("d denominators", tile)
        kernel.load("decay", tile, keys)  # inside the tile
        kernel.dot(TILE, TILE, size(keys), times=6 if decay == "channel" else 2)
        if decay == "channel":
            kernel.dot(TILE, TILE, size(keys), times=6)
        if decay == "scalar":
            kernel.dot(TILE, size(keys), TILE)
        for values in kernel.value_blocks:
            kernel.load("states at starts", chunk, keys, values)
            kernel.load("key sums at starts", chunk, keys)
            kernel.load("key sum gradients at ends", chunk, keys)
            for other in earlier:
                kernel.pass_tile(other, keys, values)
            kernel.load("state gradients at ends", chunk, keys, values)
            for other in later:
                kernel.pass_tile(other, keys, values, backward=True)
            kernel.load("do", tile, values)
            kernel.load("v", tile, values)
            kernel.dot(TILE, size(values), size(keys), times=2)
        kernel.load("decay", tile, keys)  # to and from states
        if decay in ("scalar", "channel"):
            kernel.load("q", tile, keys)
            kernel.load("k", tile, keys)
        if decay == "channel":
            kernel.dot(TILE, TILE, size(keys))


def blocks(length, step, start=0):
    borders = [*range(start, start + length, step), start + length]
    return [slice(a, b) for a, b in pairwise(borders)]


def size(block):
    return block.stop - block.start
