"""Shapes, strides, block sizes and launches of the kernels: plain functions, no autograd.

Forward: states of all chunks alone, a scan along the chunks, outputs. Backward: the same two for
the gradients of the states, then values, then queries, keys and decays. A row of T tokens keeps one
state per chunk of `chunk_tiles` tiles for its backward pass, in the operands' type.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.state import divide_or_zero
from kernels.triton import gradients, outputs, states
from kernels.triton.blocks import blocks
from kernels.triton.device import CHANNEL, HEAD, NONE, TILE, TOKEN

if triton.knobs.runtime.interpret:  # every launch of ours passes here, and none may round otherwise
    from kernels.triton.interpreter import round_as_gpus

    round_as_gpus()

TILE_TOKENS = TILE.value
CHUNK_TILES = 4
SCAN_BLOCK = 1024

_TRITON_TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def operand_types(
    dtype: torch.dtype, precise: bool = False, delta: bool = False
) -> tuple[torch.dtype, str]:
    """(type, precision) in which large products take their operands.

    bfloat16 stays bfloat16, unless `precise` asks for float32. float16 becomes float32 in single
    TF32 products, which keep its 11 bits and do not overflow. float32 takes three TF32 products:
    one is too coarse. The delta rule's writes undo earlier ones, so that errors of 16-bit operands
    reach several per cent: it keeps float32 between kernels, in products of 16 bits.
    """
    exact = "ieee" if torch.version.hip else "tf32x3"
    single = "ieee" if torch.version.hip else "tf32"
    if delta and dtype != torch.float32:
        return torch.float32, "split"
    if dtype == torch.bfloat16:
        return (torch.float32, exact) if precise else (torch.bfloat16, single)
    return torch.float32, exact if dtype == torch.float32 else single


def run(kernel: triton.JITFunction, programs: int, *arguments: object, **options: object) -> None:
    """Starts `programs` programs of a kernel; `kernels.compile` puts its own in this place."""
    kernel[(programs,)](*arguments, **options)


@dataclass(frozen=True)
class Problem:
    """The tensors of one call as kernels take them, and what is derived from their shapes."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None
    segments: Tensor | None
    first: Tensor | None  # [B] document number of the incoming state
    scale: float
    normalize: bool
    precise: bool
    chunk_tiles: int
    launch: Callable[..., None] = run
    delta: bool = False

    @staticmethod
    def of(
        q, k, v, decay, segments, first, scale, normalize, precise, chunk_tiles, launch=run,
        delta=False,
    ) -> "Problem":  # fmt: skip
        q, k, v = (rows_contiguous(x) for x in (q, k, v))
        if decay is not None and decay.dim() == 4:
            decay = rows_contiguous(decay)
        if segments is not None:
            first = (segments[:, 0] if first is None else first.to(segments.dtype)).contiguous()
        if normalize:
            scale = 1.0  # cancels
        return Problem(
            q, k, v, decay, segments, first, scale, normalize, precise, chunk_tiles, launch, delta
        )

    @property
    def operands(self) -> tuple[torch.dtype, str]:
        return operand_types(self.q.dtype, self.precise, self.delta)

    @property
    def family(self) -> int:
        dims = {1: HEAD, 3: TOKEN, 4: CHANNEL}
        return (NONE if self.decay is None else dims[self.decay.dim()]).value

    @property
    def rows(self) -> int:
        return self.q.shape[0] * self.q.shape[2]

    @property
    def tiles(self) -> int:
        return triton.cdiv(self.q.shape[1], TILE_TOKENS)

    @property
    def num_chunks(self) -> int:
        return triton.cdiv(self.tiles, self.chunk_tiles)

    @property
    def decay_channels(self) -> int:
        return self.q.shape[3] if self.family == CHANNEL.value else 1

    def gates(self) -> tuple[Tensor, tuple[int, int, int]]:
        """decay with its strides over batch, time and head; a stand-in where there is none."""
        if self.decay is None:
            return self.q, (0, 0, 0)
        if self.decay.dim() == 1:
            return self.decay, (0, 0, self.decay.stride(0))
        return self.decay, self.decay.stride()[:3]

    def documents(self) -> tuple[Tensor, Tensor, tuple[int, int]]:
        if self.segments is None:
            return self.q, self.q, (0, 0)
        return self.segments, self.first, self.segments.stride()

    def pairs(self) -> Tensor:
        """New, float32: a number of every two tokens of a tile, [rows * tiles, TILE, TILE]."""
        shape = (self.rows * self.tiles, TILE_TOKENS, TILE_TOKENS)
        return self.q.new_empty(shape, dtype=torch.float32)

    def constants(self) -> dict:
        dtype, precision = self.operands
        return {
            "FAMILY": self.family,
            "SEGMENTS": self.segments is not None,
            "OPERAND": _TRITON_TYPES[dtype],
            "PRECISION": precision,
            "K": self.q.shape[3],
            "V": self.v.shape[3],
        }

    def options(self, kernel: str) -> dict:
        dtype, precision = self.operands
        chosen = blocks(
            kernel,
            self.family == CHANNEL.value,
            dtype == torch.float32 and precision != "split",
            self.q.shape[3],
            self.v.shape[3],
        )
        return {
            "BK": chosen.keys,
            "BV": chosen.values,
            "num_warps": chosen.num_warps,
            "num_stages": chosen.num_stages,
        }

    def lengths(self) -> tuple[float, int, int, int, int]:
        return self.scale, self.q.shape[1], self.q.shape[2], self.num_chunks, self.chunk_tiles


def rows_contiguous(x: Tensor) -> Tensor:
    """x with neighbouring channels next to each other; other axes may have any strides."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def state_or_zeros(p: Problem, state: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """A state, or the gradient of one, contiguous; where there is none, zeros [*shape], float32."""
    return p.q.new_zeros(shape, dtype=torch.float32) if state is None else state.contiguous()


def forward(
    p: Problem, S: Tensor | None, z: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(o, final S, final z, denominators, states, sums, totals); parts not needed are empty."""
    batch, _, heads, key_width = p.q.shape
    value_width = p.v.shape[3]
    new = p.q.new_empty
    dtype, _ = p.operands
    totals = new(p.rows * p.num_chunks, p.decay_channels, dtype=torch.float32)
    added, added_sums = _chunk_states(p, p.k, p.v, None, totals, backward=False)
    chunk_starts, final = _scan(p, added, totals, S, (batch, heads, key_width, value_width), dtype)
    sums, final_z = new(0, dtype=torch.float32), new(0, dtype=torch.float32)
    if p.normalize:
        sums, final_z = _scan(p, added_sums, totals, z, (batch, heads, key_width), torch.float32)
    o, denominators, _ = launch_outputs(p, chunk_starts, sums)
    return o, final, final_z, denominators, chunk_starts, sums, totals


def backward(
    p: Problem,
    d_o: Tensor,
    d_S: Tensor | None,
    d_z: Tensor | None,
    o: Tensor,
    denominators: Tensor,
    chunk_starts: Tensor,
    sums: Tensor,
    totals: Tensor,
    with_decay: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(d_q, d_k, d_v, d_decay, gradients of the incoming S and z); parts not needed are empty."""
    batch, _, heads, key_width = p.q.shape
    value_width = p.v.shape[3]
    new = p.q.new_empty
    dtype, _ = p.operands
    d_denominators = None
    if p.normalize:
        # o = numerator / denominator: from here on d_o is the gradient of the numerator.
        d_o = divide_or_zero(d_o, denominators)
        d_denominators = -(d_o * o).sum(3)
    d_o = rows_contiguous(d_o)
    added, added_sums = _chunk_states(p, p.q, d_o, d_denominators, totals, backward=True)
    shape = (batch, heads, key_width, value_width)
    d_states, d_initial = _scan(p, added, totals, d_S, shape, dtype, backward=True)
    d_sums, d_initial_z = new(0, dtype=torch.float32), new(0, dtype=torch.float32)
    if p.normalize:
        d_sums, d_initial_z = _scan(
            p, added_sums, totals, d_z, shape[:3], torch.float32, backward=True
        )
    decay, decay_strides = p.gates()
    segments, first, segment_strides = p.documents()

    d_v = torch.empty_like(p.v, memory_format=torch.contiguous_format)
    options = p.options("value_gradients")
    p.launch(
        gradients.value_gradients, p.rows * p.tiles * triton.cdiv(value_width, options["BV"]),
        p.q, p.k, d_o, decay, segments, first, d_states, d_v,
        *p.q.stride()[:3], *p.k.stride()[:3], *d_o.stride()[:3], *decay_strides, *segment_strides,
        *p.lengths(), **p.constants(), **options,
    )  # fmt: skip

    d_q, d_k, d_decay = launch_key_query_gradients(
        p, d_o, d_denominators, chunk_starts, d_states, sums, d_sums, with_decay
    )
    return d_q, d_k, d_v, d_decay, d_initial, d_initial_z


def launch_outputs(p: Problem, chunk_starts: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(o, denominators, the delta rule's weights of pairs); parts not needed are empty."""
    batch, length, heads, _ = p.q.shape
    value_width = p.v.shape[3]
    new = p.q.new_empty
    # The gradient of a denominator is a difference from the mean value: o must not be rounded.
    o = new(p.v.shape, dtype=torch.float32 if p.normalize else p.q.dtype)
    denominators = new((batch, length, heads) if p.normalize else 0, dtype=torch.float32)
    weights = p.pairs() if p.delta else new(0)
    decay, decay_strides = p.gates()
    segments, first, segment_strides = p.documents()
    options = p.options("delta_outputs" if p.delta else "outputs")
    p.launch(
        outputs.outputs, p.rows * p.tiles * triton.cdiv(value_width, options["BV"]),
        p.q, p.k, p.v, decay, segments, first, chunk_starts, sums, o, denominators, weights,
        *p.q.stride()[:3], *p.k.stride()[:3], *p.v.stride()[:3], *decay_strides, *segment_strides,
        *p.lengths(), NORMALIZE=p.normalize, KEEP_WEIGHTS=p.delta,
        **p.constants(), **options,
    )  # fmt: skip
    return o, denominators, weights


def launch_key_query_gradients(
    p: Problem,
    d_o: Tensor,
    d_denominators: Tensor | None,
    chunk_starts: Tensor,
    d_states: Tensor,
    sums: Tensor,
    d_sums: Tensor,
    with_decay: bool,
    d_v: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(d_q, d_k, d_decay). d_v: for the delta rule, contiguous; p.v are its writes then."""
    batch, length, heads, key_width = p.q.shape
    d_q = torch.empty_like(p.q, memory_format=torch.contiguous_format)
    d_k = torch.empty_like(p.k, memory_format=torch.contiguous_format)
    options = p.options("delta_key_query_gradients" if p.delta else "key_query_gradients")
    key_blocks = triton.cdiv(key_width, options["BK"])
    with_decay = with_decay and p.decay is not None
    d_decay = p.q.new_empty(0, dtype=torch.float32)
    if with_decay:
        shape = (key_blocks, batch, length, heads)
        shape = p.q.shape if p.family == CHANNEL.value else shape
        d_decay = p.q.new_empty(shape, dtype=torch.float32)
    decay, decay_strides = p.gates()
    segments, first, segment_strides = p.documents()
    weights, weight_strides = _of_tokens(d_denominators, p.q)
    scale, *lengths = p.lengths()
    p.launch(
        gradients.key_query_gradients, p.rows * p.tiles * key_blocks,
        p.q, p.k, p.v, d_o, d_v if p.delta else d_o, decay, segments, first, weights,
        chunk_starts, d_states, sums, d_sums, d_q, d_k, d_decay,
        *p.q.stride()[:3], *p.k.stride()[:3], *p.v.stride()[:3], *d_o.stride()[:3],
        *decay_strides, *segment_strides, *weight_strides,
        scale, lengths[0], batch * length * heads, *lengths[1:],
        NORMALIZE=p.normalize, D_DECAY=with_decay, DELTA=p.delta, **p.constants(), **options,
    )  # fmt: skip
    if with_decay and p.family != CHANNEL.value:
        # Sums over blocks here and not by atomics: the same bits in every run.
        d_decay = d_decay.sum(0)
        if p.family == HEAD.value:
            d_decay = d_decay.sum((0, 1), dtype=torch.float64).float()
    return d_q, d_k, d_decay


def _of_tokens(weights: Tensor | None, stand_in: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """weights [B, T, H] with its strides over batch and time; a stand-in where there is none."""
    return (stand_in, (0, 0)) if weights is None else (weights, weights.stride()[:2])


def _chunk_states(
    p: Problem, x: Tensor, y: Tensor, weights: Tensor | None, totals: Tensor, backward: bool
) -> tuple[Tensor, Tensor]:
    """[B * H * chunks, K, V] and [B * H * chunks, K]: forwards of keys, backwards of queries."""
    key_width, value_width = p.q.shape[3], p.v.shape[3]
    chunks = p.rows * p.num_chunks  # one axis: a compiler makes a program of its own for sizes of 1
    states_ = p.q.new_empty(chunks, key_width, value_width, dtype=torch.float32)
    sums = p.q.new_empty((chunks, key_width) if p.normalize else 0, dtype=torch.float32)
    decay, decay_strides = p.gates()
    segments, first, segment_strides = p.documents()
    weights, weight_strides = _of_tokens(weights, p.q)
    options = p.options("chunk_states")
    programs = triton.cdiv(key_width, options["BK"]) * triton.cdiv(value_width, options["BV"])
    p.launch(
        states.chunk_states, chunks * programs,
        x, y, decay, segments, first, weights, states_, sums, totals,
        *x.stride()[:3], *y.stride()[:3], *decay_strides, *segment_strides, *weight_strides,
        *p.lengths(), BACKWARD=backward, NORMALIZE=p.normalize, **p.constants(), **options,
    )  # fmt: skip
    return states_, sums


def _scan(
    p: Problem,
    added: Tensor,
    totals: Tensor,
    initial: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    backward: bool = False,
) -> tuple[Tensor, Tensor]:
    """(states at the chunks' borders in `dtype`, what comes out at the end, float32)."""
    initial = state_or_zeros(p, initial, shape)
    final = torch.empty_like(initial)
    at_chunks = torch.empty_like(added, dtype=dtype)
    segments, first, segment_strides = p.documents()
    _, length, heads, num_chunks, chunk_tiles = p.lengths()
    key_width, value_width = p.q.shape[3], shape[3] if len(shape) == 4 else 1
    block = min(SCAN_BLOCK, triton.next_power_of_2(key_width * value_width))
    p.launch(
        states.scan_states, p.rows * triton.cdiv(key_width * value_width, block),
        added, totals, segments, first, initial, at_chunks, final, *segment_strides,
        length, heads, num_chunks, chunk_tiles,
        BACKWARD=backward, SEGMENTS=p.segments is not None, K=key_width, V=value_width,
        DECAYS=p.decay_channels, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return at_chunks, final
