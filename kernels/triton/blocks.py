"""How much of a head each program works on: the one configuration of every kernel.

Chosen from registers and shared memory as `python -m kernels.compile` shows them, not by timing at
run time: nothing is compiled twice, and no length is part of a choice. This module needs no triton.
"""

from typing import Literal, NamedTuple

KernelName = Literal[
    "chunk_states", "outputs", "value_gradients", "key_query_gradients",
    "corrections", "delta_states", "delta_outputs", "delta_state_gradients",
    "delta_key_query_gradients",
]  # fmt: skip

MOST_DELTA_KEYS = 256  # a program of the delta rule has the states of all keys of a head on chip


class Blocks(NamedTuple):
    """Most key and value channels of a program, its warps, and stages of its loads' pipeline."""

    keys: int
    values: int
    num_warps: int
    num_stages: int


# For one decay per head or token, for one per channel, and for float32 operands (of the delta rule:
# for float32 inputs).
_TABLE: dict[KernelName, tuple[Blocks, Blocks, Blocks]] = {
    "chunk_states": (Blocks(64, 64, 8, 2), Blocks(64, 64, 8, 2), Blocks(64, 64, 8, 1)),
    "outputs": (Blocks(64, 128, 8, 2), Blocks(32, 128, 8, 2), Blocks(32, 64, 8, 1)),
    "value_gradients": (Blocks(64, 128, 8, 2), Blocks(32, 128, 8, 2), Blocks(32, 64, 8, 1)),
    "key_query_gradients": (Blocks(64, 32, 8, 1), Blocks(32, 32, 8, 1), Blocks(32, 32, 8, 1)),
    "corrections": (Blocks(64, 16, 8, 1), Blocks(32, 16, 8, 1), Blocks(32, 16, 8, 1)),
    "delta_states": (Blocks(64, 16, 4, 1), Blocks(64, 16, 4, 1), Blocks(32, 16, 4, 1)),
    "delta_outputs": (Blocks(32, 64, 8, 1), Blocks(32, 64, 8, 1), Blocks(32, 64, 8, 1)),
    "delta_state_gradients": (Blocks(64, 16, 4, 1), Blocks(32, 16, 4, 1), Blocks(32, 16, 4, 1)),
    "delta_key_query_gradients": (Blocks(16, 32, 8, 1), Blocks(16, 16, 4, 1), Blocks(16, 32, 8, 1)),
}


def most_channels(kernel: KernelName, channel: bool, wide: bool) -> Blocks:
    """The table's entry. channel: decays per key channel. wide: float32 operands."""
    return _TABLE[kernel][2 if wide else int(channel)]


def blocks(
    kernel: KernelName, channel: bool, wide: bool, key_width: int, value_width: int
) -> Blocks:
    """The same, no wider than the head: powers of two from 16, the smallest side of a product."""
    chosen = most_channels(kernel, channel, wide)
    return chosen._replace(
        keys=min(chosen.keys, _padded(key_width)), values=min(chosen.values, _padded(value_width))
    )


def _padded(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())


MOST_STEPS = 16  # tokens that are decoded one after another; longer rows are chunked
_STATE_OF_A_PROGRAM = 4096  # float32 numbers: 32 registers of each thread of four warps


def decode_options(key_width: int, value_width: int) -> dict[str, int]:
    """Blocks and warps of the decoding kernel: all keys, and as many values as registers hold."""
    keys = _padded(key_width)
    values = min(_padded(value_width), max(1, _STATE_OF_A_PROGRAM // keys))
    warps = 4 if keys * values <= _STATE_OF_A_PROGRAM else 8
    return {"BK": keys, "BV": values, "num_warps": warps}


LayerKernelName = Literal[
    "convolve", "convolve_backward", "normalize_and_gate", "normalize_and_gate_backward"
]


class LayerBlocks(NamedTuple):
    """Values of a tile, most channels of it, tiles of a program one after another, its warps."""

    tile: int
    channels: int
    steps: int
    num_warps: int


# A norm needs its whole head; a backward pass sums the weight's gradient over all its tiles.
_LAYERS: dict[LayerKernelName, LayerBlocks] = {
    "convolve": LayerBlocks(2048, 64, 1, 4),
    "convolve_backward": LayerBlocks(512, 64, 16, 4),
    "normalize_and_gate": LayerBlocks(2048, 1 << 20, 1, 4),
    "normalize_and_gate_backward": LayerBlocks(2048, 1 << 20, 4, 4),
}


def layer_options(kernel: LayerKernelName, width: int) -> dict[str, int]:
    """The entry for rows of `width` channels, as the kernels' options."""
    chosen = _LAYERS[kernel]
    channels = min(chosen.channels, 1 << (width - 1).bit_length())
    rows = max(1, chosen.tile // channels)
    return {
        "D": width,
        "ROWS": rows,
        "CHANNELS": channels,
        "STEPS": chosen.steps,
        "num_warps": chosen.num_warps,
    }
