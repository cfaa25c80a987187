"""The accounting of `python -m kernels.cost` against hand counts and a simulation of every load."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from kernels.cost.__main__ import main
from kernels.cost.accounting import Kernel, Shape, access, bytes_moved
from kernels.cost.devices import DEVICES, floor_seconds, total_seconds
from kernels.cost.fewest import fewest_kernels
from kernels.cost.ours import our_kernels
from kernels.cost.plan import CHUNK, TILE, block_sizes
from kernels.cost.published import published_kernels

DECAYS = ("none", "head", "scalar", "channel")
TENSOR = 2 * 16384 * 16 * 128 * 2  # bytes of one bfloat16 [B, T, H, 128] of the default shape
STATE = 2 * 16 * 128 * 128 * 4  # bytes of one float32 [B, H, K, V]
CHUNK_DECAYS = 2 * 16 * 64 * 4  # bytes of one float32 [B, H, chunks of 256]


@pytest.mark.parametrize(("decay", "most"), [("head", 0.6), ("channel", 0.5)])
def test_ours_moves_a_fraction_of_the_published_bytes(decay, most):
    shape = Shape(2, 16384, 16, 128, 128, decay, "bfloat16")
    assert bytes_moved(our_kernels(shape)) <= most * bytes_moved(published_kernels(shape))


def test_bytes_of_the_default_shape_equal_the_counts_by_hand():
    # In whole tensors: forward, then backward, kernel after kernel. A state per 256 tokens in
    # float32 is as large as one tensor, one per 64 tokens four times that, a float32 tensor two.
    ours_head = (3 + 1.5 + 4.5) + (3 + 1.5 + 4.5 + 7)
    theirs_head = (4 + 6) + (6 + 6 + 14 + 8)
    ours_channel = (5 + 1.5 + 6.5) + (5 + 1.5 + 6.5 + 11)
    below, diagonal = 6 / 16, 4 / 16  # of the scores
    theirs_channel = 4 + 6 + (4 + below) + (4 + diagonal) + 1 + 8
    theirs_channel += 8 + 8 + 10 + 3 + (4 + below + diagonal + 4) + 24 + 6
    head, channel = Shape(decay="head"), Shape(decay="channel")
    # A scan fills and reads the state at one end and writes that at the other; the sums of
    # chunks' decays are written once and read by both scans.
    assert bytes_moved(our_kernels(head)) == ours_head * TENSOR + 6 * STATE + 3 * CHUNK_DECAYS
    assert bytes_moved(published_kernels(head)) == theirs_head * TENSOR
    small = 6 * STATE + 3 * 128 * CHUNK_DECAYS
    assert bytes_moved(our_kernels(channel)) == ours_channel * TENSOR + small
    assert bytes_moved(published_kernels(channel)) == theirs_channel * TENSOR


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("length", [1, 64, 300, 1000])
@pytest.mark.parametrize("decay", DECAYS)
def test_loads_and_products_equal_a_simulation_of_every_program(decay, length, normalize):
    shape = Shape(1, length, 1, 96, 160, decay, normalize=normalize)
    kernels = {kernel.name: kernel for kernel in our_kernels(shape)}
    for name, simulation in simulate(shape).items():
        kernel = kernels[name]
        assert {tensor.name for tensor in kernel.reads} == set(simulation.counts), name
        for tensor in kernel.reads:
            counts = simulation.counts[tensor.name]
            assert np.count_nonzero(counts) == tensor.elements, (name, tensor.name)
            assert counts.sum() == tensor.requested, (name, tensor.name)
        assert kernel.matmul_flops == simulation.flops, name
        assert kernel.tf32_flops == simulation.tf32_flops, name


class Simulation:
    """Counts the loads of every element and the FLOPs of every product of one kernel."""

    def __init__(self, shape: Shape, kernel: str) -> None:
        self.shape = shape
        keys, values = block_sizes(kernel.removesuffix(", reverse"), shape)
        self.key_blocks = blocks(shape.key_width, keys)
        self.value_blocks = blocks(shape.value_width, values)
        self.counts, self.flops, self.tf32_flops = {}, 0, 0

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

    def tf32_dot(self, rows: int, inner: int, columns: int, times: int = 1) -> None:
        self.tf32_flops += times * 2 * rows * inner * columns

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
    for keys in kernel.key_blocks:
        for values in kernel.value_blocks:
            kernel.load("states at starts", chunk, keys, values)
            kernel.load("key sums at starts", chunk, keys)
            kernel.load("key sum gradients at ends", chunk, keys)
            for other in earlier:
                kernel.pass_tile(other, keys, values)
            kernel.load("state gradients at ends", chunk, keys, values)
            for other in later:
                kernel.pass_tile(other, keys, values, backward=True)
            kernel.load("v", tile, values)
            kernel.load("do", tile, values)
            kernel.dot(TILE, size(values), TILE)
            kernel.dot(TILE, size(values), size(keys), times=2)
        kernel.load("d denominators", tile)
        for name in ("q", "k", "decay"):
            kernel.load(name, tile, keys)
        if kernel.shape.decay == "channel":
            kernel.dot(TILE, TILE, size(keys), times=6)
            kernel.tf32_dot(TILE, TILE, size(keys), times=6 + 2)
        else:
            kernel.dot(TILE, TILE, size(keys), times=2)
        if kernel.shape.decay == "scalar":
            kernel.dot(TILE, size(keys), TILE)
            kernel.tf32_dot(TILE, TILE, TILE)


def blocks(length, step, start=0):
    borders = [*range(start, start + length, step), start + length]
    return [slice(a, b) for a, b in pairwise(borders)]


def size(block):
    return block.stop - block.start


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_every_tensor_was_written_before_it_is_read(decay, normalize):
    shape = Shape(1, 300, 2, 96, 160, decay, normalize=normalize)
    given = fewest_kernels(shape)
    state = given[0].writes[-1]  # the missing states are of the final state's size
    known = {tensor.name: tensor[:3] for tensor in given[1].reads}  # q, k, v, decay, do
    known |= {tensor.name: tensor[:3] for tensor in given[0].writes}  # o
    for name in ("initial state", "d final state"):
        known[name] = state._replace(name=name)[:3]
    for kernel in our_kernels(shape):
        if kernel.name != "quotient gradients":  # several launches in one line
            for tensor in kernel.reads:
                assert known[tensor.name] == tensor[:3], (kernel.name, tensor.name)
        known |= {tensor.name: tensor[:3] for tensor in kernel.writes}
    for tensor in (*given[0].writes, *given[1].writes):
        assert known[tensor.name] == tensor[:3], tensor.name


@pytest.mark.parametrize("decay", DECAYS)
def test_every_published_tensor_was_written_before_it_is_read(decay):
    shape = Shape(1, 300, 2, 96, 160, decay)
    known = {tensor.name: tensor.width for tensor in fewest_kernels(shape)[1].reads}
    for kernel in published_kernels(shape):
        for tensor in kernel.reads:  # of scores only a part is written or read
            assert known[tensor.name] == tensor.width, (kernel.name, tensor.name)
        known |= {tensor.name: tensor.width for tensor in kernel.writes}
    for tensor in fewest_kernels(shape)[1].writes:
        assert known[tensor.name] == tensor.width, tensor.name


@pytest.mark.parametrize("length", [10, 100, 256])
def test_published_scores_equal_the_blocks_below_the_diagonal(length):
    shape = Shape(1, length, 1, decay="channel")
    kernels = {kernel.name: kernel for kernel in published_kernels(shape)}
    chunk = 64 if length > 32 else 16
    token = np.arange(length)[:, None] % chunk // 16
    column = np.arange(chunk)[None, :] // 16
    below, diagonal = np.sum(token > column), np.sum(token == column)
    assert kernels["fwd_A, below diagonal"].bytes_written == below * 4
    assert kernels["fwd_A, diagonal"].bytes_written == diagonal * 4
    scores = next(t for t in kernels["chunk_gla_bwd_intra"].reads if t.name == "dA")
    assert scores.elements == below + diagonal


def test_published_diagonal_of_wide_keys_goes_through_parts():
    wide = {kernel.name: kernel for kernel in published_kernels(Shape(key_width=384))}
    assert wide["fwd_A, diagonal, parts"].bytes_written == 3 * 2 * 16384 * 16 * 16 * 4
    assert wide["fwd_A, diagonal, sum"].bytes_read == 3 * 2 * 16384 * 16 * 16 * 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("decay", DECAYS)
def test_nothing_beats_the_fewest_bytes_and_flops(decay, dtype):
    shape = Shape(decay=decay, dtype=dtype)
    for least in fewest_kernels(shape):
        for kernels in (our_kernels(shape), published_kernels(shape)):
            chosen = [kernel for kernel in kernels if kernel.direction == least.direction]
            assert bytes_moved(chosen) > least.bytes_moved
            assert sum(kernel.flops for kernel in chosen) > least.flops
            assert all(kernel.bytes_requested >= kernel.bytes_read for kernel in chosen)


def test_batch_heads_and_length_in_whole_chunks_scale_every_row():
    small, large = Shape(1, 512, 2), Shape(3, 1024, 4)
    for algorithm in (our_kernels, published_kernels):
        for one, twelve in zip(algorithm(small), algorithm(large), strict=True):
            moved = twelve.bytes_moved
            if one.name in ("scan_states", "scan_states, reverse"):  # states of rows, not of tokens
                moved += (12 - 6) * 3 * 2 * 128 * 128 * 4
            assert moved == 12 * one.bytes_moved
            assert twelve.flops == 12 * one.flops


def test_precise_operands_run_as_tf32_products():
    # One block of values whatever the operands: wide ones come in smaller blocks.
    types = ("bfloat16", "float16", "float32")
    narrow = [our_kernels(Shape(value_width=64, dtype=dtype)) for dtype in types]
    for bfloat16, float16, float32 in zip(*narrow, strict=True):
        products = bfloat16.matmul_flops + bfloat16.tf32_flops
        assert (float16.matmul_flops, float16.tf32_flops) == (0, products)
        assert (float32.matmul_flops, float32.tf32_flops) == (0, 3 * products)


def test_states_of_float16_inputs_are_kept_in_float32():
    half, single = our_kernels(Shape()), our_kernels(Shape(dtype="float16"))
    wider = 2 * (2 * 16 * 64 * 128 * 128)  # two more bytes per element
    # States and their gradients are written once and read by two kernels each.
    assert bytes_moved(single) - bytes_moved(half) == wider * 2 * (1 + 2)


def test_floor_is_the_slowest_unit():
    device = DEVICES[0]
    moved = (access("x", 2039, 1_000_000_000),)
    memory = Kernel("memory", "forward", moved, (), matmul_flops=155e12, tf32_flops=77e12)
    tensor = Kernel("tensor", "forward", moved, (), matmul_flops=312e12, tf32_flops=78e12)
    vector = Kernel("vector", "forward", moved, (), vector_ops=39e12)
    assert floor_seconds(memory, device) == (1.0, "memory")
    assert floor_seconds(tensor, device) == (1.5, "tensor")
    assert floor_seconds(vector, device) == (2.0, "vector")
    assert total_seconds([memory, tensor, vector], device) == 4.5


def test_the_page_holds_what_the_command_prints(capsys):
    main([])
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page


def test_one_direction_leaves_the_other_out(capsys):
    main(["--op", "linear", "--forward", "--length", "512"])
    printed = capsys.readouterr().out
    assert "outputs" in printed
    assert "value_gradients" not in printed
    assert "bytes forward" in printed


def test_normalised_outputs_have_no_published_comparison(capsys):
    main(["--op", "linear", "--normalize", "--length", "512"])
    printed = capsys.readouterr().out
    assert "quotient gradients" in printed
    assert "there is no comparison" in printed
    with pytest.raises(ValueError, match="normalize=False"):
        published_kernels(Shape(normalize=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "mamba"], "invalid choice: 'mamba'"),
        (["--length", "0"], "--length: '0' is not a whole number >= 1, such as 128"),
        (["--dtype", "float8"], "invalid choice: 'float8'"),
        (["--chunk", "64"], "unrecognized arguments: --chunk"),
    ],
)
def test_wrong_arguments_are_named(capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
