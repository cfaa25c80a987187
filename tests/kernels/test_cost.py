"""The accounting of `python -m kernels.cost` against hand counts and a simulation of every load."""

from pathlib import Path

import numpy as np
import pytest
import torch
from cost_simulation import simulate

from kernels.cost.__main__ import main
from kernels.cost.accounting import Kernel, Shape, access, bytes_moved
from kernels.cost.devices import DEVICES, floor_seconds, total_seconds
from kernels.cost.fewest import fewest_kernels
from kernels.cost.ours import our_kernels
from kernels.cost.ours_delta import our_delta_kernels
from kernels.cost.plan import CHUNK, LEVELS, TILE, Plan
from kernels.cost.published import published_kernels
from kernels.cost.published_delta import published_delta_kernels

DECAYS = ("none", "head", "scalar", "channel")
DTYPES = ("bfloat16", "float16", "float32")
ALGORITHMS = (our_kernels, published_kernels)
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
        assert (kernel.matmul_flops, kernel.tf32_flops) == (simulation.flops, 0), name


def test_tiles_chunks_and_levels_are_those_of_the_kernels():
    from kernels.triton import device, launch

    assert (device.TILE.value, device.LEVELS.value) == (TILE, LEVELS)
    assert launch.CHUNK_TILES * TILE == CHUNK


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("decay", DECAYS)
def test_kernels_their_tensors_and_blocks_are_those_of_the_launches(decay, dtype, normalize):
    from kernels.triton.launch import Problem, backward, forward

    launches = {}

    def launch(kernel, programs, *arguments, **options):
        name = kernel.__name__ + (", reverse" if options.get("BACKWARD") else "")
        tensors = [x for x in arguments if torch.is_tensor(x) and x.numel()]
        launches[name] = (options, {(x.numel(), x.element_size()) for x in tensors})

    q, k, v = (torch.zeros(2, 300, 3, n, dtype=getattr(torch, dtype)) for n in (96, 96, 160))
    axes = {"none": None, "head": (3,), "scalar": (2, 300, 3), "channel": (2, 300, 3, 96)}[decay]
    gates = None if axes is None else torch.zeros(axes)
    p = Problem.of(q, k, v, gates, None, None, 1.0, normalize, False, CHUNK // TILE, launch)
    o, _, _, *kept = forward(p, None, None)
    backward(p, torch.zeros_like(o), None, None, o, *kept, decay != "head")

    shape = Shape(2, 300, 3, 96, 160, decay, dtype, normalize)
    of_torch = ("cast of o", "quotient gradients", "sum of d decay")
    rows = [kernel for kernel in our_kernels(shape) if kernel.name not in of_torch]
    assert [row.name for row in rows] == list(launches)
    # Decays per head, and the chunks' decays, which the reverse pass is given and does not touch.
    uncounted = {(3, 4), (kept[-1].numel(), 4)}
    for row in rows:
        options, given = launches[row.name]
        if not row.name.startswith("scan_states"):  # one row for the scans of states and key sums
            counted = {(tensor.elements, tensor.width) for tensor in (*row.reads, *row.writes)}
            assert counted <= given <= counted | uncounted, row.name
            plan = Plan(shape, row.name.removesuffix(", reverse"))
            assert plan.key_blocks == -(-96 // options["BK"]), row.name
            assert plan.value_blocks == -(-160 // options["BV"]), row.name


def test_normalised_outputs_stay_float32_for_their_gradient():
    kernels = {kernel.name: kernel for kernel in our_kernels(Shape(normalize=True))}
    cast, quotient = kernels["cast of o"], kernels["quotient gradients"]
    tokens = TENSOR // 2 // 128
    assert (cast.bytes_read, cast.bytes_written) == (2 * TENSOR, TENSOR)
    # do comes in bfloat16; o, its cast, quotient, copy, quotient, product are float32.
    assert quotient.bytes_read == (1 + 6 * 2) * TENSOR + (5 * 4 + 2) * tokens
    assert quotient.bytes_written == 5 * 2 * TENSOR + (4 * 4 + 1) * tokens
    assert "cast of o" not in {k.name for k in our_kernels(Shape(dtype="float32", normalize=True))}


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("decay", DECAYS)
def test_tensors_of_the_delta_rule_were_written_before_they_are_read(decay, dtype):
    shape = Shape(1, 300, 2, 96, 160, decay, dtype, delta=True)
    given = fewest_kernels(shape)
    state = given[0].writes[-1]
    known = {tensor.name: tensor[:3] for tensor in given[1].reads}
    for name in ("initial state", "d final state"):
        known[name] = state._replace(name=name)[:3]
    for kernel in our_delta_kernels(shape):
        for tensor in kernel.reads:
            assert known[tensor.name] == tensor[:3], (kernel.name, tensor.name)
        known |= {tensor.name: tensor[:3] for tensor in kernel.writes}
    for tensor in (*given[0].writes, *given[1].writes):
        assert known[tensor.name] == tensor[:3], tensor.name


@pytest.mark.parametrize(
    ("decay", "delta"),
    [(d, delta) for delta in (False, True) for d in DECAYS if not (delta and d == "head")],
)
def test_every_published_tensor_was_written_before_it_is_read(decay, delta):
    shape = Shape(1, 300, 2, 96, 160, decay, delta=delta)
    known = {tensor.name: tensor.width for tensor in fewest_kernels(shape)[1].reads}
    for kernel in (published_delta_kernels if delta else published_kernels)(shape):
        for tensor in kernel.reads:  # of scores only a part is written or read
            assert known[tensor.name] == tensor.width, (kernel.name, tensor.name)
        known |= {tensor.name: tensor.width for tensor in kernel.writes}
    final = {"dv": "du"} if delta else {}  # under the names of the published code
    for tensor in fewest_kernels(shape)[1].writes:
        name = final.get(tensor.name, tensor.name)
        assert known[name] == tensor.width, tensor.name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("decay", DECAYS)
def test_kernels_of_the_delta_rule_are_those_of_the_launches(decay, dtype):
    from kernels.triton.delta_launch import backward, forward
    from kernels.triton.launch import Problem

    launches = {}

    def launch(kernel, programs, *arguments, **options):
        tensors = [x for x in arguments if torch.is_tensor(x) and x.numel()]
        sizes = {(x.numel(), x.element_size()) for x in tensors}
        launches[kernel.__name__] = (options, sizes)

    q, k, v = (torch.zeros(2, 300, 3, n, dtype=getattr(torch, dtype)) for n in (96, 96, 160))
    axes = {"none": None, "head": (3,), "scalar": (2, 300, 3), "channel": (2, 300, 3, 96)}[decay]
    gates, beta = None if axes is None else torch.zeros(axes), torch.zeros(2, 300, 3)
    options = (1.0, False, False, CHUNK // TILE, launch, True)
    p = Problem.of(q, k, v, gates, None, None, *options)
    o, _, *kept = forward(p, beta, None)
    backward(p, beta, torch.zeros_like(o), None, *kept, decay != "head")

    shape = Shape(2, 300, 3, 96, 160, decay, dtype, delta=True)
    of_torch = ("cast of dv", "sum of d beta", "sum of d decay")
    rows = [kernel for kernel in our_delta_kernels(shape) if kernel.name not in of_torch]
    assert [row.name for row in rows] == list(launches)
    for row in rows:
        options, given = launches[row.name]
        counted = {(tensor.elements, tensor.width) for tensor in (*row.reads, *row.writes)}
        # A decay per head is not counted; q or k stand in for what is not there.
        assert counted <= given <= counted | {(3, 4), (q.numel(), q.element_size())}, row.name
        name = row.name if row.name.startswith(("c", "d")) else f"delta_{row.name}"
        plan = Plan(shape, name)
        assert plan.key_blocks == -(-96 // options["BK"]), row.name
        if "BV" in options:
            assert plan.value_blocks == -(-160 // options["BV"]), row.name


def test_products_of_the_delta_rule_count_their_parts():
    # Of bfloat16 inputs: q k^T once, k S twice, X u three times; of float16 always three times.
    types = {dtype: Shape(1, 64, 1, 16, 16, "none", dtype, delta=True) for dtype in DTYPES}
    rows = {d: {k.name: k for k in our_delta_kernels(shape)} for d, shape in types.items()}
    pairs, states = 2 * 64 * 64 * 16, 2 * 64 * 16 * 16
    flops = {d: rows[d]["delta_states"] for d in DTYPES}
    assert flops["bfloat16"].matmul_flops == 3 * pairs + 2 * 2 * states
    assert flops["float16"].matmul_flops == 3 * (pairs + 2 * states)
    assert flops["float32"].tf32_flops == 3 * (pairs + 2 * states)
    assert rows["bfloat16"]["corrections"].matmul_flops == pairs
    assert rows["bfloat16"]["outputs"].matmul_flops == pairs + 3 * pairs + 3 * states


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_nothing_beats_the_fewest_bytes_and_flops(decay, delta, dtype):
    shape = Shape(decay=decay, dtype=dtype, delta=delta)
    algorithms = (our_delta_kernels, published_delta_kernels) if delta else ALGORITHMS
    if delta and decay == "head":
        algorithms = algorithms[:1]
    for least in fewest_kernels(shape):
        for kernels in (algorithm(shape) for algorithm in algorithms):
            chosen = [kernel for kernel in kernels if kernel.direction == least.direction]
            assert bytes_moved(chosen) > least.bytes_moved
            assert sum(kernel.flops for kernel in chosen) > least.flops
            assert all(kernel.bytes_requested >= kernel.bytes_read for kernel in chosen)


def test_batch_heads_and_length_in_whole_chunks_scale_every_row():
    small, large = Shape(1, 512, 2), Shape(3, 1024, 4)
    for algorithm in ALGORITHMS:
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
    main(["--op", "kda", "gated_deltanet", "deltanet"])
    for report in capsys.readouterr().out.split(": delta rule, ")[1:]:
        summary = report[report.index("| forward + backward") :].rsplit("\n\n", 1)[0]
        assert summary.strip() in page


def test_one_direction_leaves_the_other_out(capsys):
    main(["--op", "linear", "--forward", "--length", "512"])
    printed = capsys.readouterr().out
    assert "outputs" in printed
    assert "value_gradients" not in printed
    assert "bytes forward" in printed


def test_widths_that_no_kernel_takes_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--op", "gla", "kda", "--key-width", "257"])
    assert "--key-width 257: the kernels of the delta rule (kda) take" in capsys.readouterr().err


def test_normalised_outputs_have_no_published_comparison(capsys):
    main(["--op", "linear", "--normalize", "--length", "512"])
    printed = capsys.readouterr().out
    assert "quotient gradients" in printed
    assert "there is no comparison" in printed
    with pytest.raises(ValueError, match="normalize=False"):
        published_kernels(Shape(normalize=True))
    with pytest.raises(ValueError, match="takes no decay \\[H\\]: use decay='scalar'"):
        published_delta_kernels(Shape(decay="head", delta=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "mamba"], "invalid choice: 'mamba'"),
        (["--op", "gla", "kda", "--normalize"], "the delta rule (kda) has no denominators"),
        (
            ["--length", "0"],
            "--length: '0' is not a whole number from 1 to 2147483647",
        ),
        (["--dtype", "float8"], "invalid choice: 'float8'"),
        (["--chunk", "64"], "unrecognized arguments: --chunk"),
    ],
)
def test_wrong_arguments_are_named(capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
