"""Tiles, chunks and blocks of our kernels: how many there are, and how often they load a tensor.

Blocks come from the kernels' own table. The modules that hold the sizes of tiles and chunks need
triton, so these are written down here once more; a test compares them.
"""

from collections.abc import Callable
from math import ceil

from kernels.cost.accounting import FLOAT32, Access, Shape, access, split
from kernels.triton.blocks import KernelName, most_channels

TILE = 64
CHUNK = 256
LEVELS = 6  # log2(TILE): halvings of a tile, for decays per channel

Loads = tuple[int, int, int]  # how often a token is loaded, as in `Plan.keys`


def block_sizes(kernel: KernelName, shape: Shape) -> tuple[int, int]:
    """Most key channels and most value channels of a program."""
    wide = (shape.input_bytes if shape.delta else shape.operand_bytes) == FLOAT32
    chosen = most_channels(kernel, channel=shape.decay == "channel", wide=wide)
    return chosen.keys, chosen.values


def tokens_before(length: int) -> int:
    """Tokens of earlier tiles of the same chunk, summed over the tiles of one row."""
    return _over_chunks(length, lambda tile, size: TILE * tile)


def tokens_after(length: int) -> int:
    """Tokens of later tiles of the same chunk, summed over the tiles of one row."""
    return _over_chunks(length, lambda tile, size: size * tile)  # a tile serves all before it


def _over_chunks(length: int, of_tile: Callable[[int, int], int]) -> int:
    """The sum over all tiles of f(place in its chunk, tokens in it)."""
    chunks, rest = divmod(length, CHUNK)

    def of_chunk(tokens: int) -> int:
        return sum(of_tile(tile, size) for tile, size in enumerate(split(tokens, TILE)))

    return chunks * of_chunk(CHUNK) + of_chunk(rest)


class Plan:
    """What the rows of one kernel share: counts, tensors and operations."""

    def __init__(self, shape: Shape, kernel: KernelName) -> None:
        self.shape = shape
        rows = shape.batch * shape.heads
        self.tokens = rows * shape.length
        self.before = rows * tokens_before(shape.length)
        self.after = rows * tokens_after(shape.length)
        self.chunks = rows * ceil(shape.length / CHUNK)
        self.tiles = rows * ceil(shape.length / TILE)
        self.passes = self.before // TILE  # tiles that rebuild a state, of all programs' tiles
        keys, values = block_sizes(kernel, shape)
        self.key_blocks = ceil(shape.key_width / keys)
        self.value_blocks = ceil(shape.value_width / values)

    # Tensors. `own`, `before` and `after` say how often a token is loaded with its own tile, for
    # a later tile and for an earlier tile that rebuild a state from it.

    def keys(self, name: str, own: int = 1, before: int = 0, after: int = 0) -> Access:
        """q, k or their gradients, [B, T, H, K]."""
        width = self.shape.key_width
        return self._per_token(name, width, self.shape.input_bytes, (own, before, after))

    def values(self, name: str, own: int = 1, before: int = 0, after: int = 0) -> Access:
        """v, o or their gradients, [B, T, H, V]."""
        width = self.shape.value_width
        return self._per_token(name, width, self.shape.input_bytes, (own, before, after))

    def operands(self, name: str, own: int = 1, before: int = 0, after: int = 0) -> Access:
        """A value-wide tensor in the type of the products' operands, [B, T, H, V]."""
        width = self.shape.value_width
        return self._per_token(name, width, self.shape.operand_bytes, (own, before, after))

    def beta(self, own: int) -> Access:
        """[B, T, H], for the delta rule."""
        return self._per_token("beta", 1, FLOAT32, (own, 0, 0))

    def pairs(self, name: str, times: int = 1) -> Access:
        """A number of every two tokens of a tile, [B, H, tiles, 64, 64], for the delta rule."""
        elements = self.tiles * TILE * TILE
        return Access(name, elements, FLOAT32, times * elements)

    def output_gradient(self, own: int, after: int = 0) -> Access:
        """do, or in its place the float32 gradient of the numerator."""
        if not self.shape.normalize:
            return self.values("do", own, after=after)
        return self._per_token("d numerator", self.shape.value_width, FLOAT32, (own, 0, after))

    def decay(self, channel: Loads, scalar: Loads) -> tuple[Access, ...]:
        """The log-decay of every token; the two kinds are loaded in different places."""
        if self.shape.decay == "channel":
            return (self._per_token("decay", self.shape.key_width, FLOAT32, channel),)
        if self.shape.decay == "scalar":
            return (self._per_token("decay", 1, FLOAT32, scalar),)
        return ()  # a decay per head is one number of a program

    def denominator_gradient(self, own: int, after: int = 0) -> tuple[Access, ...]:
        """[B, T, H], when outputs are normalised."""
        if not self.shape.normalize:
            return ()
        return (self._per_token("d denominators", 1, FLOAT32, (own, 0, after)),)

    def _per_token(self, name: str, columns: int, width: int, loads: Loads) -> Access:
        own, before, after = loads
        requested = own * self.tokens + before * self.before + after * self.after
        return Access(name, self.tokens * columns, width, requested * columns)

    def states(self, name: str, width: int, per_tile: bool = False) -> Access:
        """[B, H, chunks, K, V]; `per_tile` if each tile of a chunk loads its chunk's state."""
        size = self.shape.key_width * self.shape.value_width
        readers = self.tiles if per_tile else self.chunks
        return Access(name, self.chunks * size, width, readers * size)

    def key_sums(self, name: str, times_per_tile: int = 0) -> tuple[Access, ...]:
        """[B, H, chunks, K], when outputs are normalised."""
        if not self.shape.normalize:
            return ()
        width = self.shape.key_width
        loads = self.tiles * times_per_tile or self.chunks
        return (Access(name, self.chunks * width, FLOAT32, loads * width),)

    def chunk_decay(self) -> Access:
        """The log-decay of whole chunks, [B, H, chunks, 1 or K]; zeros when there is no decay."""
        columns = self.shape.key_width if self.shape.decay == "channel" else 1
        return access("chunk decay", self.chunks * columns, FLOAT32)

    def border_state(self, name: str) -> Access:
        """One state, and key sum if normalised, per row of the batch and head."""
        columns = self.shape.value_width + (1 if self.shape.normalize else 0)
        return access(name, self.shape.elements("bhk") * columns, FLOAT32)

    # Operations. Tiles at the end of a row are multiplied whole.

    def products(self, flops: float, one: float = 0.0, both: float = 0.0) -> dict[str, float]:
        """Products none, one or both of whose operands are 16-bit inputs as they are.

        For the delta rule the other operands of 16-bit inputs are two bfloat16 numbers each. An
        input in float16 has more digits than one of these holds.
        """
        shape = self.shape
        if shape.delta and shape.input_bytes == 2:
            if shape.dtype == "float16":
                flops, one, both = flops + one + both, 0.0, 0.0
            return {"matmul_flops": 3 * flops + 2 * one + both}
        if shape.operand_bytes == 2:
            return {"matmul_flops": flops + one + both}
        return {"tf32_flops": shape.tf32_products * (flops + one + both)}

    def with_states(self, tiles: int) -> float:
        """FLOPs of products of a tile's [64, K or V] with states, or that make states of it."""
        return 2.0 * tiles * TILE * self.shape.key_width * self.shape.value_width

    def within_tiles(self, width: int) -> float:
        """FLOPs of one product between the 64 x 64 pairs of every tile and [64, width]."""
        return 2.0 * self.tiles * TILE * TILE * width

    def weigh(self, tokens: int) -> float:
        """Vector operations that weigh a key-wide operand by its decay to a border."""
        per_element = {
            "none": 0,
            "head": 1,
            "scalar": 1,
            "channel": 3,
        }  # [add, exponential,] multiply
        return per_element[self.shape.decay] * tokens * float(self.shape.key_width)

    def weigh_pairs(self) -> float:
        """Vector operations that weigh the pairs of all tiles once, for scores."""
        pairs = float(self.tiles) * TILE * TILE
        if self.shape.decay == "channel":  # operands of each level, its sum, and the diagonal
            levels = LEVELS * (self.weigh(self.tokens) + self.key_blocks * pairs)
            return levels + 2.0 * self.tokens * self.shape.key_width
        per_pair = {"none": 0, "head": 3, "scalar": 3}  # add, exponential, multiply
        return per_pair[self.shape.decay] * pairs

    def rebuild(self, tokens: int) -> float:
        """Vector operations that take states past `tokens`; the state is scaled once per tile."""
        scaled = 0 if self.shape.decay == "none" else self.passes
        size = self.shape.key_width * self.shape.value_width
        return self.value_blocks * self.weigh(tokens) + float(scaled) * size
