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
from kernels.triton.blocks import KernelName


def our_kernels(shape: Shape) -> list[Kernel]:
    """All launches of one forward and backward pass, in order; a scan includes that of key sums."""
    return [
        _chunk_states(shape),
        _scan_states(shape),
        outputs(shape),
        *([_output_cast(shape)] if _kept_output(shape).name != "o" else []),
        *([_quotient_gradients(shape)] if shape.normalize else []),
        _reverse_chunk_states(shape),
        _reverse_scan_states(shape),
        _value_gradients(shape),
        _key_query_gradients(shape),
        *([decay_gradients(shape)] if shape.decay == "scalar" else []),
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
            *_chunk_decays(plan),
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


def outputs(shape: Shape, written: Access | None = None) -> Kernel:
    """`written` is in the place of the values for the delta rule."""
    plan = Plan(shape, "delta_outputs" if shape.delta else "outputs")
    keys, values = plan.key_blocks, plan.value_blocks
    scores = values * _levels(shape) * plan.within_tiles(shape.key_width)
    weighed = shape.decay == "channel"  # before they are multiplied, not after
    return Kernel(
        "outputs",
        "forward",
        reads=(
            plan.keys("q", own=2 * values),  # against keys, then against states
            plan.keys("k", own=values, before=values),
            written or plan.values("v", own=1, before=keys),
            *plan.decay(
                channel=(2 * values, values, 0), scalar=(values * (1 + keys), values * keys, 0)
            ),
            plan.states("states at starts", shape.operand_bytes, per_tile=True),
            *plan.key_sums("key sums at starts", times_per_tile=values),
        ),
        writes=(_kept_output(shape), *_denominators(shape)),
        vector_ops=values * (plan.weigh(plan.tokens) + plan.weigh_pairs())
        + plan.rebuild(plan.before),
        **plan.products(
            (scores if weighed else 0.0)
            + plan.within_tiles(shape.value_width)
            + plan.with_states(plan.tiles + plan.passes),
            both=0.0 if weighed else scores,
        ),
    )


def _output_cast(shape: Shape) -> Kernel:
    """Rounds normalised outputs for the caller."""
    output = access("o", shape.elements("bthv"), shape.input_bytes)
    return Kernel("cast of o", "forward", reads=(_kept_output(shape),), writes=(output,))


def _quotient_gradients(shape: Shape) -> Kernel:
    """Ten element-wise launches: do / d, 0 where d = 0, and -(do / d) . o.

    A cast of do (none if it is float32), the quotient, a copy and a fill of it, the product with
    o and its sum; on denominators a comparison, a copy and a fill, and the sign.
    """
    wide = shape.elements("bthv")
    narrow = shape.elements("bth")
    cast = 0 if shape.input_bytes == FLOAT32 else wide
    quotient = access("d numerator", wide, FLOAT32)
    return Kernel(
        "quotient gradients",
        "backward",
        reads=(
            *((access("do", wide, shape.input_bytes),) if cast else ()),
            _kept_output(shape),
            access("do, quotient, copy, quotient, product", 5 * wide, FLOAT32),
            access("denominators, copies, sum", 5 * narrow, FLOAT32),
            access("where zero", 2 * narrow, 1),
        ),
        writes=(
            access("cast, quotient, copy, product", cast + 3 * wide, FLOAT32),
            access("copy, fill, sum", 3 * narrow, FLOAT32),
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
            *_chunk_decays(plan),
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
    # A product per level serves queries and keys; otherwise each has its own, and the gradient
    # of a scalar decay the scores once more.
    scores = {"none": 2, "head": 2, "scalar": 3, "channel": LEVELS}[shape.decay]
    d_decay = written_decay_gradient(plan)
    # The scores' gradient comes before the exchange with states: v, do and decays are loaded for
    # both, and a decay's gradient loads q and k again at the end.
    again = 2 if d_decay else 1
    return Kernel(
        "key_query_gradients",
        "backward",
        reads=(
            plan.keys("q", own=again, after=values),
            plan.keys("k", own=again, before=values),
            plan.values("v", own=2 * keys, before=keys),
            plan.output_gradient(own=2 * keys, after=keys),
            *plan.decay(
                channel=(2, values, values), scalar=(2 * keys, keys * values, keys * values)
            ),
            plan.states("states at starts", shape.operand_bytes, per_tile=True),
            plan.states("state gradients at ends", shape.operand_bytes, per_tile=True),
            *plan.key_sums("key sums at starts", times_per_tile=values),
            *plan.key_sums("key sum gradients at ends", times_per_tile=values),
            *plan.denominator_gradient(own=keys, after=keys * values),
        ),
        writes=(plan.keys("dq"), plan.keys("dk"), *d_decay),
        vector_ops=gradient_ops(plan)
        + 2 * plan.weigh(plan.tokens)
        + plan.rebuild(plan.before)
        + plan.rebuild(plan.after),
        **plan.products(
            keys * plan.within_tiles(shape.value_width)
            + scores * plan.within_tiles(shape.key_width)
            + plan.with_states(2 * plan.tiles + 2 * plan.passes)
            + _decay_products(plan)
        ),
    )


def written_decay_gradient(plan: Plan) -> tuple[Access, ...]:
    """What the gradients' kernel writes for decays of tokens: parts if they are one per token."""
    if plan.shape.decay == "scalar":
        return (access("d decay, parts", plan.tokens * plan.key_blocks, FLOAT32),)
    if plan.shape.decay == "channel":
        return (access("d decay", plan.tokens * plan.shape.key_width, FLOAT32),)
    return ()


def gradient_ops(plan: Plan) -> float:
    """Vector operations of the gradients of queries, keys and decays beside rebuilding states."""
    shape = plan.shape
    keys = float(plan.tokens) * shape.key_width
    pairs = float(plan.key_blocks * plan.tiles) * TILE * TILE
    summed = 2 * keys  # dq and dk: what comes from pairs inside the tile and what from states
    if shape.decay in ("none", "head"):
        return summed + plan.key_blocks * plan.weigh_pairs()
    # For the decay: queries and keys times what comes from states, and states times gradients.
    exchanged = 2 * keys + 2.0 * plan.tiles * shape.key_width * shape.value_width
    if shape.decay == "scalar":
        # Scores times gradients and three sums along pairs; two along channels.
        return summed + exchanged + plan.key_blocks * plan.weigh_pairs() + 4 * pairs + 2 * keys
    # A level weighs its operand and its product, adds the product to dq or dk and multiplies it by
    # the operand. Before the levels the scores' gradients are made symmetric, and those on the
    # diagonal multiply queries and keys. What queries read is summed along tokens.
    return summed + exchanged + LEVELS * (plan.weigh(plan.tokens) + 3 * keys) + pairs + 3 * keys


def _decay_products(plan: Plan) -> float:
    """FLOPs of the products with matrices of zeros and ones that sum up a decay's gradient."""
    if plan.shape.decay == "channel":
        return (LEVELS + 1) * plan.within_tiles(plan.shape.key_width)
    return 0.0


def decay_gradients(shape: Shape, kernel: KernelName = "key_query_gradients") -> Kernel:
    """Adds up the parts that the blocks of keys leave of a scalar decay's gradient."""
    plan = Plan(shape, kernel)
    return Kernel(
        "sum of d decay",
        "backward",
        reads=written_decay_gradient(plan),
        writes=(access("d decay", plan.tokens, FLOAT32),),
        vector_ops=float(plan.tokens * plan.key_blocks),
    )


def _chunk_decays(plan: Plan) -> tuple[Access, ...]:
    """As one scan reads them; key sums have a scan of their own."""
    return (plan.chunk_decay(),) * (2 if plan.shape.normalize else 1)


def _kept_output(shape: Shape) -> Access:
    """o as the backward pass needs it: with denominators in float32, whatever the inputs are."""
    if shape.normalize and shape.input_bytes != FLOAT32:
        return access("o in float32", shape.elements("bthv"), FLOAT32)
    return access("o", shape.elements("bthv"), shape.input_bytes)


def _denominators(shape: Shape) -> list[Access]:
    return [access("denominators", shape.elements("bth"), FLOAT32)] if shape.normalize else []


def _levels(shape: Shape) -> int:
    """How many masked products weigh the pairs of a tile."""
    return LEVELS if shape.decay == "channel" else 1


def _scan_ops(plan: Plan) -> float:
    """A multiplication and an addition per element of a state and chunk; no decay only adds."""
    operations = 1.0 if plan.shape.decay == "none" else 2.0
    return operations * plan.chunks * plan.shape.key_width * plan.shape.value_width
