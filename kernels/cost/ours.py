"""What our kernels move and compute: tiles of 64 tokens inside chunks of 256.

States are written at the borders of chunks only. A program owns one tile and rebuilds the state at
its border from the one at the chunk's start and the tiles in between (the state's gradient from the
chunk's end and the tiles that follow). In `outputs` and `value_gradients` a program owns a block of
values and loops over blocks of keys, in `key_query_gradients` it is the other way round;
`chunk_states` has a program for every pair of blocks. A block that one step of a loop loads twice
counts once in `requested`.

Accumulators and the states of single chunks are float32. States at borders are kept in the type of
the products' operands: bfloat16 for bfloat16 inputs, else float32.
"""

from kernels.cost.accounting import FLOAT32, Access, Kernel, Shape, access
from kernels.cost.plan import LEVELS, TILE, Plan


def our_kernels(shape: Shape) -> list[Kernel]:
    """All launches of one forward and backward pass, in order; a scan includes that of key sums."""
    return [
        _chunk_states(shape),
        _scan_states(shape),
        _outputs(shape),
        *([_quotient_gradients(shape)] if shape.normalize else []),
        _reverse_chunk_states(shape),
        _reverse_scan_states(shape),
        _value_gradients(shape),
        _key_query_gradients(shape),
        *([_decay_gradients(shape)] if shape.decay == "scalar" else []),
    ]


def _chunk_states(shape: Shape) -> Kernel:
    plan = Plan(shape, "chunk_states")
    keys, values = plan.key_blocks, plan.value_blocks
    return Kernel(
        "chunk_states",
        "forward",
        reads=(
            plan.keys("k", own=values),
            plan.values("v", own=keys),
            *plan.decay(channel=(values, 0, 0), scalar=(keys * values, 0, 0)),
        ),
        writes=(
            plan.states("local states", FLOAT32),
            *plan.key_sums("local key sums"),
            plan.chunk_decay(),
        ),
        vector_ops=values * plan.weigh(plan.tokens),
        **plan.products(plan.with_states(plan.tiles)),
    )


def _scan_states(shape: Shape) -> Kernel:
    plan = Plan(shape, "chunk_states")
    return Kernel(
        "scan_states",
        "forward",
        reads=(
            plan.states("local states", FLOAT32),
            *plan.key_sums("local key sums"),
            plan.chunk_decay(),
            plan.border_state("initial state"),
        ),
        writes=(
            plan.border_state("initial state"),  # filled with zeros beforehand
            plan.states("states at starts", shape.operand_bytes),
            *plan.key_sums("key sums at starts"),
            plan.border_state("final state"),
        ),
        vector_ops=_scan_ops(plan),
    )


def _outputs(shape: Shape) -> Kernel:
    plan = Plan(shape, "outputs")
    keys, values = plan.key_blocks, plan.value_blocks
    return Kernel(
        "outputs",
        "forward",
        reads=(
            plan.keys("q", own=2 * values),  # against keys, then against states
            plan.keys("k", own=values, before=values),
            plan.values("v", own=1, before=keys),
            *plan.decay(
                channel=(2 * values, values, 0), scalar=(values * (1 + keys), values * keys, 0)
            ),
            plan.states("states at starts", shape.operand_bytes, per_tile=True),
            *plan.key_sums("key sums at starts", times_per_tile=values),
        ),
        writes=(plan.values("o"), *_denominators(shape)),
        vector_ops=values * (plan.weigh(plan.tokens) + plan.weigh_pairs())
        + plan.rebuild(plan.before),
        **plan.products(
            values * _levels(shape) * plan.within_tiles(shape.key_width)
            + plan.within_tiles(shape.value_width)
            + plan.with_states(plan.tiles + plan.passes)
        ),
    )


def _quotient_gradients(shape: Shape) -> Kernel:
    """Eleven element-wise launches: do / d, 0 where d = 0, and -(do / d) . o.

    Casts of do and o (none if they are float32), the quotient, a copy and a fill of it, the product
    with o and its sum; on denominators a comparison, a copy and a fill, and the sign.
    """
    wide = shape.elements("bthv")
    narrow = shape.elements("bth")
    cast = 0 if shape.input_bytes == FLOAT32 else 2 * wide  # of do and o
    inputs = () if not cast else (access("do, o", cast, shape.input_bytes),)
    quotient = access("d numerator", wide, FLOAT32)
    return Kernel(
        "quotient gradients",
        "backward",
        reads=(
            *inputs,
            access("do, quotient, copy, quotient, o, product", 6 * wide, FLOAT32),
            access("denominators, copies, sum", 5 * narrow, FLOAT32),
            access("where zero", 2 * narrow, 1),
        ),
        writes=(
            access("casts, quotient, copy, product", cast + 3 * wide, FLOAT32),
            access("copies, fill, sum", 3 * narrow, FLOAT32),
            access("where zero", narrow, 1),
            quotient,
            access("d denominators", narrow, FLOAT32),
        ),
        vector_ops=3.0 * wide,
    )


def _reverse_chunk_states(shape: Shape) -> Kernel:
    plan = Plan(shape, "chunk_states")
    keys, values = plan.key_blocks, plan.value_blocks
    return Kernel(
        "chunk_states, reverse",
        "backward",
        reads=(
            plan.keys("q", own=values),
            plan.output_gradient(own=keys),
            *plan.decay(channel=(values, 0, 0), scalar=(keys * values, 0, 0)),
            *plan.denominator_gradient(own=keys * values),
        ),
        writes=(
            plan.states("local state gradients", FLOAT32),
            *plan.key_sums("local key sum gradients"),
        ),
        vector_ops=values * plan.weigh(plan.tokens),
        **plan.products(plan.with_states(plan.tiles)),
    )


def _reverse_scan_states(shape: Shape) -> Kernel:
    plan = Plan(shape, "chunk_states")
    return Kernel(
        "scan_states, reverse",
        "backward",
        reads=(
            plan.states("local state gradients", FLOAT32),
            *plan.key_sums("local key sum gradients"),
            plan.chunk_decay(),
            plan.border_state("d final state"),
        ),
        writes=(
            plan.border_state("d final state"),  # filled with zeros beforehand
            plan.states("state gradients at ends", shape.operand_bytes),
            *plan.key_sums("key sum gradients at ends"),
            plan.border_state("d initial state"),
        ),
        vector_ops=_scan_ops(plan),
    )


def _value_gradients(shape: Shape) -> Kernel:
    plan = Plan(shape, "value_gradients")
    keys, values = plan.key_blocks, plan.value_blocks
    return Kernel(
        "value_gradients",
        "backward",
        reads=(
            plan.keys("q", own=values, after=values),
            plan.keys("k", own=2 * values),  # against queries, then against state gradients
            plan.output_gradient(own=1, after=keys),
            *plan.decay(
                channel=(2 * values, 0, values), scalar=(values * (1 + keys), 0, values * keys)
            ),
            plan.states("state gradients at ends", shape.operand_bytes, per_tile=True),
        ),
        writes=(plan.values("dv"),),
        vector_ops=values * (plan.weigh(plan.tokens) + plan.weigh_pairs())
        + plan.rebuild(plan.after),
        **plan.products(
            values * _levels(shape) * plan.within_tiles(shape.key_width)
            + plan.within_tiles(shape.value_width)
            + plan.with_states(plan.tiles + plan.passes)
        ),
    )


def _key_query_gradients(shape: Shape) -> Kernel:
    plan = Plan(shape, "key_query_gradients")
    keys, values = plan.key_blocks, plan.value_blocks
    channel = shape.decay == "channel"
    # A product per level serves queries and keys; otherwise each has its own, and the gradient
    # of a scalar decay the scores once more.
    scores = {"none": 2, "head": 2, "scalar": 3, "channel": LEVELS}[shape.decay]
    numbers = {"none": 0, "head": 0, "scalar": keys, "channel": shape.key_width}[shape.decay]
    name = "d decay" if channel else "d decay, parts"
    decay_gradient = access(name, plan.tokens * numbers, FLOAT32)
    products = plan.products(
        keys * plan.within_tiles(shape.value_width)
        + scores * plan.within_tiles(shape.key_width)
        + plan.with_states(2 * plan.tiles + 2 * plan.passes)
    )
    tf32 = products.pop("tf32_flops", 0.0) + shape.tf32_products * _decay_products(plan)
    return Kernel(
        "key_query_gradients",
        "backward",
        reads=(
            plan.keys("q", own=1, after=values),
            plan.keys("k", own=1, before=values),
            plan.values("v", own=keys, before=keys),
            plan.output_gradient(own=keys, after=keys),
            *plan.decay(channel=(1, values, values), scalar=(keys, keys * values, keys * values)),
            plan.states("states at starts", shape.operand_bytes, per_tile=True),
            plan.states("state gradients at ends", shape.operand_bytes, per_tile=True),
            *plan.key_sums("key sums at starts", times_per_tile=values),
            *plan.key_sums("key sum gradients at ends", times_per_tile=values),
            *plan.denominator_gradient(own=keys, after=keys * values),
        ),
        writes=(plan.keys("dq"), plan.keys("dk"), *([decay_gradient] if numbers else [])),
        # A decay's gradient also takes the product of each tile's state with its gradient.
        vector_ops=2 * plan.weigh(plan.tokens)
        + (1 if channel else keys) * plan.weigh_pairs()
        + plan.rebuild(plan.before)
        + plan.rebuild(plan.after)
        + (2.0 * plan.tiles * shape.key_width * shape.value_width if numbers else 0.0),
        tf32_flops=tf32,
        **products,
    )


def _decay_products(plan: Plan) -> float:
    """FLOPs of the products with triangles of ones that sum up a decay's gradient, in float32."""
    if plan.shape.decay == "channel":
        return (LEVELS + 2) * plan.within_tiles(plan.shape.key_width)
    if plan.shape.decay == "scalar":
        return plan.key_blocks * plan.within_tiles(TILE)
    return 0.0


def _decay_gradients(shape: Shape) -> Kernel:
    """Adds up the parts that the blocks of keys leave of a scalar decay's gradient."""
    plan = Plan(shape, "key_query_gradients")
    return Kernel(
        "sum of d decay",
        "backward",
        reads=(access("d decay, parts", plan.tokens * plan.key_blocks, FLOAT32),),
        writes=(access("d decay", plan.tokens, FLOAT32),),
        vector_ops=float(plan.tokens * plan.key_blocks),
    )


def _denominators(shape: Shape) -> list[Access]:
    return [access("denominators", shape.elements("bth"), FLOAT32)] if shape.normalize else []


def _levels(shape: Shape) -> int:
    """How many masked products weigh the pairs of a tile."""
    return LEVELS if shape.decay == "channel" else 1


def _scan_ops(plan: Plan) -> float:
    """A multiplication and an addition per element of a state and chunk; no decay only adds."""
    operations = 1.0 if plan.shape.decay == "none" else 2.0
    return operations * plan.chunks * plan.shape.key_width * plan.shape.value_width
