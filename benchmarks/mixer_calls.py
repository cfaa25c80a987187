"""Every mixer preset at one width, head size and length, and its core alone, as calls to time.

The width of the model is fixed, and a head size d makes width / d heads: softmax attention then
costs the same at every d, a linear mixer in proportion to d. d is the width of a value head before
the preset's own `expand_k` and `expand_v`; widths of keys that a source fixes whatever the head
size stay as they are there (PUBLISHED_KEYS).

The core is attention itself, of queries, keys and values that are projected and mapped already:
`kernels.linear_attention` with the preset's kind of decay and write, or `model.attention`, or of a
sparse-plus-linear mixer both, with the feature map between them. The whole mixer has projections,
convolutions, feature map, decay, norm and gate around it. Rows are one
document, batch 1, float32; weights as they start.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.presets import preset
from kernels import LinearState, linear_attention
from kernels.problems import make_problem
from model.attention import attention, continued_attention
from model.kv_cache import KVState, trim
from model.mixers import mixer_class
from model.mixers.linear import LinearMixer
from model.mixers.softmax import SoftmaxMixer
from model.mixers.sparse_linear import SparseLinearMixer
from model.pattern import Depth
from model.sequence import SequenceInfo
from model.softmax_config import SoftmaxSettings

PUBLISHED_KEYS = {"taylor": 16, "mamba2": 128}  # Based (2024), Mamba-2 (2024)
_NORM_EPS = 1e-6

Call = Callable[[], tuple[Tensor, ...]]
Mixer = LinearMixer | SoftmaxMixer | SparseLinearMixer


def build(name: str, width: int, head_dim: int, longest: int) -> Mixer:
    """The mixer of a preset in a model of `width` channels.

    Args:
        longest: tokens that any row will have, for cosFormer's `max_length`.

    Raises:
        ValueError: the widths do not divide.
    """
    heads = width // head_dim
    changes: dict[str, Any] = {"heads": heads}
    settings = preset(name)
    if isinstance(settings, SoftmaxSettings):
        changes["kv_heads"] = heads
    elif name in PUBLISHED_KEYS:
        changes["expand_k"] = PUBLISHED_KEYS[name] * (settings.qk_heads or heads) / width
    if name == "cosformer":
        changes["max_length"] = longest
    settings = preset(name, **changes)
    torch.manual_seed(0)
    mixer = mixer_class(settings)(settings, width, _NORM_EPS, Depth(1, 3))
    for module in mixer.modules():
        if hasattr(module, "init_weights"):
            module.init_weights()
    return mixer


def row_calls(mixer: Mixer, length: int) -> dict[tuple[str, str], Call]:
    """{(part, pass): call} for part "whole" and "core", pass "forward" and "training".

    Training is forward and backward, to the gradients of inputs and weights.
    """
    info = SequenceInfo.of(torch.empty(1, length))
    x = torch.randn(1, length, mixer.q.in_features, requires_grad=True)
    whole = (lambda: mixer(x, info)[0]), [x, *mixer.parameters()]
    core = _linear_core if isinstance(mixer, LinearMixer) else _attention_core
    calls = {}
    for part, (run, leaves) in {"whole": whole, "core": core(mixer, length, info)}.items():
        calls[part, "forward"] = _forward(run)
        calls[part, "training"] = _training(run, leaves)
    return calls


def decode_calls(mixer: Mixer, context: int) -> tuple[dict[tuple[str, str], Call], int]:
    """Calls of one more token after `context` tokens, and the bytes of what is carried.

    What is carried is made up, not computed: its values do not change what a step costs.
    """
    zero = torch.zeros(1, 1, dtype=torch.int64)
    info = SequenceInfo(zero, zero + context)
    x = torch.randn(1, 1, mixer.q.in_features)
    first = SequenceInfo(zero, zero)
    with torch.no_grad():
        state = mixer(x, first, None, keep_state=True)[1]
    if not isinstance(mixer, LinearMixer):
        q, k, v = (torch.randn(1, 1, mixer.heads, mixer.head_dim) for _ in range(3))
    if isinstance(mixer, SoftmaxMixer):
        keys = _made_up_keys(mixer.kv_heads, mixer.head_dim, context)
        state = state._replace(cache=trim(keys, mixer.mask))

        def core() -> Tensor:
            return continued_attention(q, k, v, info, mixer.mask, state.cache)[0].y
    elif isinstance(mixer, SparseLinearMixer):
        keys = tuple(
            trim(
                _made_up_keys(heads.stop - heads.start, mixer.head_dim, context), mask, mask.window
            )
            for heads, mask in mixer.groups
        )
        state = state._replace(keys=keys)

        def core() -> Tensor:
            return mixer.attend(q, k, v, info, state, keep_state=True)[0]
    else:
        family, keys, values, normalize = mixer.kernel_shape()
        one = make_problem(
            family, length=1, batch=1, heads=mixer.heads, key_width=keys, value_width=values,
            normalize=normalize,
        )  # fmt: skip
        carried = LinearState(one.S, one.z, zero[:, 0])

        def core() -> Tensor:
            return linear_attention(
                one.q, one.k, one.v, one.decay, one.beta, scale=keys**-0.5, normalize=normalize,
                segments=zero, state=carried,
            )[0]  # fmt: skip

    calls = {
        ("whole", "decode"): _forward(lambda: mixer(x, info, state, keep_state=True)[0]),
        ("core", "decode"): _forward(core),
    }
    return calls, _bytes(state)


def _forward(run: Callable[[], Tensor]) -> Call:
    @torch.no_grad()
    def call() -> tuple[Tensor, ...]:
        return (run(),)

    return call


def _training(run: Callable[[], Tensor], leaves: list[Tensor]) -> Call:
    upstream: list[Tensor] = []

    def call() -> tuple[Tensor, ...]:
        out = run()
        if not upstream:
            upstream.append(torch.randn_like(out))
        return out.detach(), *torch.autograd.grad(out, leaves, upstream[0])

    return call


Core = tuple[Callable[[], Tensor], list[Tensor]]


def _attention_core(
    mixer: SoftmaxMixer | SparseLinearMixer, length: int, info: SequenceInfo
) -> Core:
    shape = 1, length, mixer.heads, mixer.head_dim
    q, k, v = leaves = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    if isinstance(mixer, SoftmaxMixer):
        return lambda: attention(q, k, v, info, mixer.mask).y, leaves
    return lambda: mixer.attend(q, k, v, info)[0], leaves


def _linear_core(mixer: LinearMixer, length: int, info: SequenceInfo) -> Core:
    family, keys, values, normalize = mixer.kernel_shape()
    row = make_problem(
        family, length=length, batch=1, heads=mixer.heads, key_width=keys, value_width=values,
        normalize=normalize,
    )  # fmt: skip
    leaves = [row.q, row.k, row.v]
    # The decay of a running maximum has no gradient, one per head here is fixed.
    if row.decay is not None and row.decay.dim() > 1 and not mixer.feature_map.state_bytes:
        leaves.append(row.decay)
    if row.beta is not None:
        leaves.append(row.beta)
    for leaf in leaves:
        leaf.requires_grad_()

    def run() -> Tensor:
        return linear_attention(
            row.q, row.k, row.v, row.decay, row.beta, scale=keys**-0.5, normalize=normalize
        )[0]

    return run, leaves


def _made_up_keys(heads: int, head_dim: int, context: int) -> KVState:
    k, v = torch.randn(2, 1, context, heads, head_dim)
    positions = torch.arange(context)[None]
    return KVState(k, v, torch.zeros_like(positions), positions)


def _bytes(state: Any) -> int:
    """Of all tensors in nested tuples."""
    if isinstance(state, Tensor):
        return state.nbytes
    return sum(_bytes(item) for item in state or () if item is not None)
