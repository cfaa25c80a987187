"""What our kernels of the delta rule move and compute: see `kernels.cost.ours`.

Triangular systems of all tiles, then one program per block of values along the row, tile after
tile; outputs and the gradients of queries and keys are the additive kernels with writes in the
place of values. What the step of one tile loads twice counts once in `requested`.
"""

from kernels.cost.accounting import FLOAT32, Access, Kernel, Shape, access
from kernels.cost.ours import decay_gradients, gradient_ops, outputs
from kernels.cost.plan import LEVELS, TILE, Plan

# Products that solve a tile's system from blocks of 2 rows on: four blocks of 16 x 16 at once in
# three doublings, then two of 16 x 16, then one of 32 x 32; two products per doubling.
SOLVING = 2 * 2 * (3 * 4 * 16**3 + 2 * 16**3 + 32**3)


def our_delta_kernels(shape: Shape) -> list[Kernel]:
    """All launches of one forward and backward pass, in order."""
    return [
        _corrections(shape),
        _delta_states(shape),
        _outputs(shape),
        *_cast(shape, "do"),
        _delta_state_gradients(shape),
        _key_query_gradients(shape),
        *([decay_gradients(shape, "delta_key_query_gradients")] if shape.decay == "scalar" else []),
        *_cast(shape, "dv"),
        _beta_gradients(shape),
    ]


def _corrections(shape: Shape) -> Kernel:
    plan = Plan(shape, "corrections")
    solving = {"tf32_flops": 3.0 * plan.tiles * SOLVING}
    products = plan.products(levels(shape) * plan.within_tiles(shape.key_width))
    return Kernel(
        "corrections",
        "forward",
        reads=(
            plan.keys("k"),
            plan.beta(1),
            *plan.decay(channel=(1, 0, 0), scalar=(1, 0, 0)),
        ),
        writes=(_corrections_of(plan),),
        vector_ops=plan.weigh_pairs(),
        **{name: products.get(name, 0.0) + solving.get(name, 0.0) for name in products | solving},
    )


def _delta_states(shape: Shape) -> Kernel:
    plan = Plan(shape, "delta_states")
    values = plan.value_blocks
    return Kernel(
        "delta_states",
        "forward",
        reads=(
            plan.keys("k", own=values),
            plan.values("v"),
            plan.beta(values),
            *plan.decay(channel=(values, 0, 0), scalar=(values, 0, 0)),
            _corrections_of(plan, values),
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
        **_with_corrections(plan, plan.with_states((1 + _parts(shape)) * plan.tiles)),
    )


def _outputs(shape: Shape) -> Kernel:
    plan = Plan(shape, "outputs")
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
            plan.operands("do"),
            plan.operands("errors"),
            plan.beta(values),
            *plan.decay(channel=(values, 0, 0), scalar=(values, 0, 0)),
            _corrections_of(plan, values),
            plan.pairs("weights", values),
            plan.border_state("d final state"),
        ),
        writes=(
            plan.border_state("d final state"),  # filled with zeros beforehand
            plan.states("state gradients at ends", shape.operand_bytes),
            plan.border_state("d initial state"),
            plan.operands("dv"),
            access("d beta, parts", plan.tokens * values, FLOAT32),
        ),
        vector_ops=_state_ops(plan, reads=2) + 6.0 * plan.tokens * shape.value_width,
        **_with_corrections(
            plan,
            plan.with_states((2 + _parts(shape)) * plan.tiles)
            + plan.within_tiles(shape.value_width),
        ),
    )


def _key_query_gradients(shape: Shape) -> Kernel:
    """The additive kernel with two readings of every state, by queries and by keys."""
    plan = Plan(shape, "delta_key_query_gradients")
    keys, values = plan.key_blocks, plan.value_blocks
    channel = shape.decay == "channel"
    scores = {"none": 4, "head": 4, "scalar": 6, "channel": 2 * LEVELS}[shape.decay]
    numbers = {"none": 0, "head": 0, "scalar": keys, "channel": shape.key_width}[shape.decay]
    again = 1 if numbers else 0
    summed = {"scalar": 2 * keys * plan.within_tiles(TILE)}
    summed["channel"] = (2 * LEVELS + 2) * plan.within_tiles(shape.key_width)
    decay_gradient = access(
        "d decay" if channel else "d decay, parts", plan.tokens * numbers, FLOAT32
    )
    return Kernel(
        "key_query_gradients",
        "backward",
        reads=(
            plan.keys("q", own=1 + again, after=values),
            plan.keys("k", own=2 + again, before=values, after=values),
            plan.operands("writes", own=3 * keys, before=keys),
            plan.operands("do", own=2 * keys, after=keys),
            plan.operands("dv", own=2 * keys, after=keys),
            *plan.decay(
                channel=(3, values, values), scalar=(3 * keys, keys * values, keys * values)
            ),
            plan.states("states at starts", shape.operand_bytes, per_tile=True),
            plan.states("state gradients at ends", shape.operand_bytes, per_tile=True),
        ),
        writes=(plan.keys("dq"), plan.keys("dk"), *([decay_gradient] if numbers else [])),
        vector_ops=2 * gradient_ops(plan)
        + 3 * plan.weigh(plan.tokens)
        + plan.rebuild(plan.before)
        + plan.rebuild(plan.after)
        + values * plan.weigh(plan.after),
        **plan.products(
            2 * keys * plan.within_tiles(shape.value_width)
            + scores * plan.within_tiles(shape.key_width)
            + plan.with_states(3 * plan.tiles + 3 * plan.passes)
            + summed.get(shape.decay, 0.0)
        ),
    )


def _cast(shape: Shape, name: str) -> list[Kernel]:
    """float16 gradients are float32 inside."""
    if shape.input_bytes == shape.operand_bytes:
        return []
    outside = access(name, shape.elements("bthv"), shape.input_bytes)
    inside = access(name, shape.elements("bthv"), shape.operand_bytes)
    read, written = (outside, inside) if name == "do" else (inside, outside)
    return [Kernel(f"cast of {name}", "backward", reads=(read,), writes=(written,))]


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


def levels(shape: Shape) -> int:
    """How many masked products weigh the pairs of a tile."""
    return LEVELS if shape.decay == "channel" else 1


def _corrections_of(plan: Plan, times: int = 1) -> Access:
    """float16 for 16-bit inputs: no element exceeds 1."""
    return plan.pairs("corrections", times, width=plan.shape.input_bytes)


def _parts(shape: Shape) -> int:
    """Operands that hold all digits of a write."""
    return 2 if shape.operand_bytes == 2 else 1


def _with_corrections(plan: Plan, flops: float) -> dict[str, float]:
    """Products of the operands' type, and the one with corrections, whose operands are float32."""
    exact = plan.shape.tf32_products * plan.within_tiles(plan.shape.value_width)
    products = {"tf32_flops": 0.0} | plan.products(flops)
    return products | {"tf32_flops": products["tf32_flops"] + exact}


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
