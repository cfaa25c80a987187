"""What our kernels of the delta rule move and compute: see `kernels.cost.ours`.

Triangular systems of all tiles, then one program per block of values along the row, tile after
tile; outputs and the gradients of queries and keys are the additive kernels with writes in the
place of values. What the step of one tile loads twice counts once in `requested`.
"""

from kernels.cost.accounting import FLOAT32, Access, Kernel, Shape, access
from kernels.cost.ours import decay_gradients, gradient_ops, outputs, written_decay_gradient
from kernels.cost.plan import LEVELS, Plan

# Products that solve a tile's system from blocks of 2 rows on: four blocks of 16 x 16 at once in
# three doublings, then two of 16 x 16, then one of 32 x 32; two products per doubling.
SOLVING = 2 * 2 * (3 * 4 * 16**3 + 2 * 16**3 + 32**3)


def our_delta_kernels(shape: Shape) -> list[Kernel]:
    """All launches of one forward and backward pass, in order."""
    return [
        _corrections(shape),
        _delta_states(shape),
        _outputs(shape),
        _delta_state_gradients(shape),
        _key_query_gradients(shape),
        *([decay_gradients(shape, "delta_key_query_gradients")] if shape.decay == "scalar" else []),
        *([_cast(shape)] if shape.input_bytes != FLOAT32 else []),
        _beta_gradients(shape),
    ]


def _corrections(shape: Shape) -> Kernel:
    plan = Plan(shape, "corrections")
    scores = plan.within_tiles(shape.key_width)
    of_levels = LEVELS * scores if shape.decay == "channel" else 0.0
    products = plan.products(of_levels, both=0.0 if of_levels else scores)
    tf32 = products.pop("tf32_flops", 0.0) + 3.0 * plan.tiles * SOLVING
    return Kernel(
        "corrections",
        "forward",
        reads=(
            plan.keys("k"),
            plan.beta(1),
            *plan.decay(channel=(1, 0, 0), scalar=(1, 0, 0)),
        ),
        writes=(plan.pairs("corrections"),),
        vector_ops=plan.weigh_pairs(),
        tf32_flops=tf32,
        **products,
    )


def _delta_states(shape: Shape) -> Kernel:
    plan = Plan(shape, "delta_states")
    values = plan.value_blocks
    of_keys = plan.with_states(2 * plan.tiles)  # read and written
    return Kernel(
        "delta_states",
        "forward",
        reads=(
            plan.keys("k", own=values),
            plan.values("v"),
            plan.beta(values),
            *plan.decay(channel=(values, 0, 0), scalar=(values, 0, 0)),
            plan.pairs("corrections", values),
            plan.border_state("initial state"),
        ),
        writes=(
            plan.border_state("initial state"),  # filled with zeros beforehand
            plan.states("states at starts", shape.operand_bytes),
            plan.border_state("final state"),
            plan.operands("errors"),
            plan.operands("writes"),
        ),
        vector_ops=_state_ops(plan) + 4.0 * plan.tokens * shape.value_width,
        **_products(plan, plan.within_tiles(shape.value_width), of_keys),
    )


def _outputs(shape: Shape) -> Kernel:
    plan = Plan(shape, "delta_outputs")
    kernel = outputs(shape, plan.operands("writes", own=1, before=plan.key_blocks))
    return Kernel(**(vars(kernel) | {"writes": (*kernel.writes, plan.pairs("weights"))}))


def _delta_state_gradients(shape: Shape) -> Kernel:
    plan = Plan(shape, "delta_state_gradients")
    values = plan.value_blocks
    return Kernel(
        "delta_state_gradients",
        "backward",
        reads=(
            plan.keys("q", own=values),
            plan.keys("k", own=values),
            plan.values("do"),
            plan.operands("errors"),
            plan.beta(values),
            *plan.decay(channel=(values, 0, 0), scalar=(values, 0, 0)),
            plan.pairs("corrections", values),
            plan.pairs("weights", values),
            plan.border_state("d final state"),
        ),
        writes=(
            plan.border_state("d final state"),  # filled with zeros beforehand
            plan.states("state gradients at ends", shape.operand_bytes),
            plan.border_state("d initial state"),
            _inner_value_gradient(plan),
            access("d beta, parts", plan.tokens * values, FLOAT32),
        ),
        vector_ops=_state_ops(plan, reads=2) + 6.0 * plan.tokens * shape.value_width,
        **_products(
            plan,
            plan.within_tiles(shape.value_width),
            plan.with_states(3 * plan.tiles),
            one=plan.within_tiles(shape.value_width),
        ),
    )


def _key_query_gradients(shape: Shape) -> Kernel:
    """The additive kernel with two readings of every state, by queries and by keys."""
    plan = Plan(shape, "delta_key_query_gradients")
    keys, values = plan.key_blocks, plan.value_blocks
    channel = shape.decay == "channel"
    d_decay = written_decay_gradient(plan)
    again = 1 if d_decay else 0
    # Products inside the tile, by how many of their operands are inputs. A decay per channel weighs
    # both beforehand, but multiplies zeros and ones for its gradient.
    across = plan.within_tiles(shape.key_width)
    none, one = (2 * LEVELS, 2 * LEVELS + 1) if channel else (0, 3)
    both = 2 if shape.decay == "scalar" else 0
    through = 2.0 * plan.tiles * shape.key_width * shape.value_width if d_decay else 0.0
    return Kernel(
        "key_query_gradients",
        "backward",
        reads=(
            plan.keys("q", own=1 + again, after=values),
            plan.keys("k", own=2 + again, before=values, after=values),
            plan.operands("writes", own=3 * keys, before=keys),
            plan.values("do", own=2 * keys, after=keys),
            _inner_value_gradient(plan, own=2 * keys, after=keys),
            *plan.decay(
                channel=(3, values, values), scalar=(3 * keys, keys * values, keys * values)
            ),
            plan.states("states at starts", shape.operand_bytes, per_tile=True),
            plan.states("state gradients at ends", shape.operand_bytes, per_tile=True),
        ),
        writes=(plan.keys("dq"), plan.keys("dk"), *d_decay),
        vector_ops=2 * gradient_ops(plan)
        - through  # what passes the whole tile counts once
        + 3 * plan.weigh(plan.tokens)
        + plan.rebuild(plan.before)
        + plan.rebuild(plan.after)
        + values * plan.weigh(plan.after),
        **plan.products(
            keys * plan.within_tiles(shape.value_width)
            + none * across
            + plan.with_states(2 * plan.tiles + 2 * plan.passes),
            one=keys * plan.within_tiles(shape.value_width)
            + one * across
            + plan.with_states(plan.tiles + plan.passes),
            both=both * across,
        ),
    )


def _inner_value_gradient(plan: Plan, own: int = 1, after: int = 0) -> Access:
    """What keys read has -dv as its gradient: it is kept in float32."""
    name = "dv" if plan.shape.input_bytes == FLOAT32 else "dv in float32"
    return plan.operands(name, own, after=after)


def _cast(shape: Shape) -> Kernel:
    """Rounds dv for the caller."""
    plan = Plan(shape, "delta_state_gradients")
    reads, writes = (_inner_value_gradient(plan),), (plan.values("dv"),)
    return Kernel("cast of dv", "backward", reads, writes)


def _beta_gradients(shape: Shape) -> Kernel:
    """Adds up the parts that the blocks of values leave."""
    plan = Plan(shape, "delta_state_gradients")
    parts = plan.tokens * plan.value_blocks
    return Kernel(
        "sum of d beta",
        "backward",
        reads=(access("d beta, parts", parts, FLOAT32),),
        writes=(access("d beta", plan.tokens, FLOAT32),),
        vector_ops=float(parts),
    )


def _products(plan: Plan, flops: float, of_keys: float, one: float = 0.0) -> dict[str, float]:
    """`of_keys` have q or k as an operand, which a decay per channel weighs beforehand."""
    if plan.shape.decay == "channel":
        return plan.products(flops + of_keys, one)
    return plan.products(flops, one + of_keys)


def _state_ops(plan: Plan, reads: int = 1) -> float:
    """Vector operations that weigh by decays what a tile reads and writes, and the state itself.

    Decays per channel weigh `reads` key-wide operands of every block of values and one for the
    other end of the tile; others weigh rows of values.
    """
    shape = plan.shape
    if shape.decay == "none":
        return 0.0
    state = float(plan.tiles) * shape.key_width * shape.value_width
    if shape.decay == "channel":
        return state + (reads + 1) * plan.value_blocks * plan.weigh(plan.tokens)
    return state + (reads + 1.0) * plan.tokens * shape.value_width
