"""The public function: contract, validation of what the caller gave, choice of backend."""

from typing import Protocol

import torch
from torch import Tensor

from kernels.derivatives import refuse_transforms
from kernels.reference import reference_attention
from kernels.state import LinearState, empty_state, work_dtype
from kernels.torch_backend import torch_attention
from kernels.triton_backend import refusal, triton_attention
from kernels.validation import check_dense, check_flag, check_numbers


class Backend(Protocol):
    """What a backend provides: `linear_attention` for T >= 1 and validated arguments."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor | None,
        beta: Tensor | None,
        *,
        scale: float,
        normalize: bool,
        segments: Tensor | None,
        state: LinearState | None,
        chunk_size: int | None,
    ) -> tuple[Tensor, LinearState]: ...


BACKENDS: dict[str, Backend] = {
    "triton": triton_attention,
    "torch": torch_attention,
    "reference": reference_attention,
}
_LARGEST_SCALE = torch.finfo(torch.float32).max
_LARGEST_CHUNK = 2**31 - 1
_HALVES = (torch.bfloat16, torch.float16)
_DTYPES = (*_HALVES, torch.float32, torch.float64)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    scale: float = 1.0,
    normalize: bool = False,
    segments: Tensor | None = None,
    state: LinearState | None = None,
    chunk_size: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, LinearState]:
    """Run S_t = S' + k_t v_t^T with S' = D_t S_{t-1}, and y_t = scale q_t^T S_t, over T tokens.

    With `beta`, the delta rule (Schlag et al., 2021): what is written is not v_t but how far it is
    from what the state holds for k_t, S_t = S' + k_t beta_t (v_t - k_t^T S')^T.

    Args:
        q, k: [B, T, H, K], feature maps already applied; any strides.
        v: [B, T, H, V]; q, k and v share one dtype: bfloat16, float16, float32 or float64. Large
            products take bfloat16 operands for bfloat16 inputs; for float16, whose range is too
            small for long sums, and for the delta rule, whose writes undo earlier ones, float32.
        decay: natural logarithm of D_t, float32 (float64 with float64 inputs), finite, <= 0.
            None, or [H] (constant per head), [B, T, H] (scalar per token), [B, T, H, K] (one per
            key channel). Values above 0 are a mistake that is not looked for: a check would stall
            a GPU.
        beta: [B, T, H], strength of each write of the delta rule, in the type of decays; None for
            the additive write. The state is multiplied by I - beta_t k_t k_t^T, which is stable
            for 0 <= beta_t |k_t|^2 <= 2: L2-normalised keys and beta up to 2 (not checked, for the
            same reason as decay). Not together with `normalize`.
        scale: multiplies q; cancels and has no effect when `normalize` is set.
        normalize: divide by q_t^T z_t, z_t = D_t z_{t-1} + k_t. Where that denominator is 0, or
            nearer to it than 1e-30, the output is 0 and passes no gradient. Meant for kernels q.k
            that are positive.
        segments: integer [B, T], document numbers, non-decreasing along T (not checked, for the
            same reason as decay). Nothing finite passes from one document to another, from or into
            the carried state included; a NaN or an infinity may spoil its whole row, as chunks
            multiply by 0 where step by step nothing is read.
        state: what an earlier call returned; None starts from nothing. Its parts must match this
            call: z is there exactly when `normalize` is set, segment exactly when `segments` is.
        chunk_size: tokens handled at once, 1 to 2^31 - 1; None picks a measured default. It changes
            speed and rounding, not the result. Decays per token round it up to a power of two,
            triton to a multiple of 64.
        backend: "triton" (GPUs), "torch", "reference" (step by step), or "auto": triton where it
            can run, torch elsewhere.

    Returns:
        o [B, T, H, V] in v's dtype, and the state after the last token (float32, or float64 for
        float64 inputs). T = 0 gives an empty output and the incoming state. Gradients flow
        through everything that is floating point, once: second derivatives, forward mode and the
        transforms of torch.func take backend="reference". Autocast is ignored.

    Raises:
        ValueError: for any argument outside this contract.
    """
    _check_types(q, k, v, decay, beta, segments, state)
    _check_inputs(q, k, v)
    _check_options(scale, normalize, chunk_size, backend)
    _check_decay(q, decay)
    _check_beta(q, beta, normalize)
    _check_segments(q, segments)
    _check_state(q, v, normalize, segments, state)
    run = _choose_backend(backend, q, beta)
    if run is not reference_attention:
        parts = () if state is None else (state.S, state.z)
        instead = "use backend='reference'"
        refuse_transforms("linear_attention", (q, k, v, decay, beta, *parts), instead)
    if q.shape[1] == 0:
        return v.clone(), _state_of_no_tokens(q, v, normalize, segments, state)
    return run(
        q,
        k,
        v,
        decay,
        beta,
        scale=float(scale),
        normalize=normalize,
        segments=segments,
        state=state,
        chunk_size=chunk_size,
    )


def _choose_backend(name: str, q: Tensor, beta: Tensor | None) -> Backend:
    if name == "auto":
        on_gpu = q.device.type == "cuda" and refusal(q, beta) is None
        return BACKENDS["triton" if on_gpu else "torch"]
    if name == "triton" and (reason := refusal(q, beta)) is not None:
        raise ValueError(f"backend='triton' {reason}")
    return BACKENDS[name]


def _check_types(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    segments: Tensor | None,
    state: LinearState | None,
) -> None:
    """Every tensor is a dense one with data, so that later checks may ask for its shape."""
    required = {"q": q, "k": k, "v": v}
    optional = {"decay": decay, "beta": beta, "segments": segments}
    if state is not None:
        if not isinstance(state, LinearState):
            raise ValueError(
                f"state must be a kernels.LinearState or None, got {type(state).__name__}"
            )
        required["state.S"] = state.S
        optional |= {"state.z": state.z, "state.segment": state.segment}
    check_dense(required, optional)


def _check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() != 4 or q.shape != k.shape or v.dim() != 4 or q.shape[:3] != v.shape[:3]:
        raise ValueError(f"expected q and k [B, T, H, K] and v [B, T, H, V], got {shapes}")
    if 0 in (q.shape[0], q.shape[2], q.shape[3], v.shape[3]):
        raise ValueError(f"batch, heads and head widths must be at least 1, got {shapes}")
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in _DTYPES:
        raise ValueError(
            "q, k and v must share one dtype out of bfloat16, float16, float32, float64; got "
            f"{q.dtype}, {k.dtype}, {v.dtype}: cast them, e.g. q.to(v.dtype)"
        )
    if not (q.device == k.device == v.device):
        raise ValueError(f"q, k, v lie on different devices: {q.device}, {k.device}, {v.device}")
    if q.device.type == "meta":
        raise ValueError("q, k, v lie on the meta device, which holds no data: move them off it")


def _check_options(scale: float, normalize: bool, chunk_size: int | None, backend: str) -> None:
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        raise ValueError(f"scale must be a Python number, got {type(scale).__name__}: scale q")
    if not -_LARGEST_SCALE <= scale <= _LARGEST_SCALE:
        raise ValueError(
            f"scale must be finite and at most {_LARGEST_SCALE:g}, got {_shown(scale)}"
        )
    check_flag("normalize", normalize)
    if chunk_size is not None and (
        not isinstance(chunk_size, int)
        or isinstance(chunk_size, bool)
        or not 1 <= chunk_size <= _LARGEST_CHUNK
    ):
        raise ValueError(
            "chunk_size must be a whole number >= 1, below 2^31, or None, got " + _shown(chunk_size)
        )
    if not isinstance(backend, str) or backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend={backend!r} is unknown; use one of {['auto', *BACKENDS]}")


def _shown(value: object) -> str:
    """What was given, in a few words: Python refuses to print numbers of thousands of digits."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a whole number of more than 40 digits"
    return f"{value!r:.40}"


def _check_decay(q: Tensor, decay: Tensor | None) -> None:
    if decay is None:
        return
    batch, length, heads, width = q.shape
    allowed = ((heads,), (batch, length, heads), (batch, length, heads, width))
    if tuple(decay.shape) not in allowed:
        raise ValueError(
            f"decay has shape {tuple(decay.shape)}; for q {tuple(q.shape)} it must be None, "
            f"[H] = {allowed[0]}, [B, T, H] = {allowed[1]} or [B, T, H, K] = {allowed[2]}"
        )
    _check_work_tensor("decay", decay, q, "16-bit decays round to 1")


def _check_beta(q: Tensor, beta: Tensor | None, normalize: bool) -> None:
    if beta is None:
        return
    if normalize:
        raise ValueError(
            "normalize=True is given with beta: the delta rule writes with signed weights, whose "
            "sum may vanish; pass normalize=False, or beta=None for the additive write"
        )
    _check_shape("beta", beta, tuple(q.shape[:3]), "[B, T, H]")
    _check_work_tensor("beta", beta, q, "16-bit strengths round off what a write corrects")


def _check_segments(q: Tensor, segments: Tensor | None) -> None:
    if segments is None:
        return
    if segments.shape != q.shape[:2]:
        raise ValueError(
            f"segments has shape {tuple(segments.shape)}; it must be [B, T] = {tuple(q.shape[:2])}"
        )
    _check_integers("segments", segments, q)


def _check_state(
    q: Tensor, v: Tensor, normalize: bool, segments: Tensor | None, state: LinearState | None
) -> None:
    if state is None:
        return
    if normalize and state.z is None:
        raise ValueError("normalize=True needs state.z, which is None: pass z [B, H, K]")
    if not normalize and state.z is not None:
        raise ValueError("state.z is given but normalize is False: pass z=None or normalize=True")
    if segments is not None and state.segment is None:
        raise ValueError(
            "segments is given but state.segment is None: pass the document number [B] that the "
            "state belongs to, state._replace(segment=...)"
        )
    if segments is None and state.segment is not None:
        raise ValueError(
            "state.segment is given but segments is None: pass segments [B, T], or "
            "state._replace(segment=None) if all tokens continue the state's document"
        )
    batch, _, heads, width = q.shape
    _check_shape("state.S", state.S, (batch, heads, width, v.shape[3]), "[B, H, K, V]")
    _check_work_tensor("state.S", state.S, q, "sums do not fit into 16 bit")
    if state.z is not None:
        _check_shape("state.z", state.z, (batch, heads, width), "[B, H, K]")
        _check_work_tensor("state.z", state.z, q, "sums do not fit into 16 bit")
    if state.segment is not None:
        _check_shape("state.segment", state.segment, (batch,), "[B]")
        _check_integers("state.segment", state.segment, q)


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], legend: str) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {legend} = {shape}")


def _check_work_tensor(name: str, tensor: Tensor, q: Tensor, reason: str) -> None:
    work = work_dtype(q.dtype)
    if tensor.dtype != work:
        why = f" ({reason})" if tensor.dtype in _HALVES else ""
        raise ValueError(
            f"{name} is {tensor.dtype}; with {q.dtype} inputs it must be {work}{why}: "
            f"pass it .to({work})"
        )
    _check_device(name, tensor, q)


def _check_integers(name: str, tensor: Tensor, q: Tensor) -> None:
    check_numbers(name, tensor)
    _check_device(name, tensor, q)


def _check_device(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.device != q.device:
        raise ValueError(f"{name} lies on {tensor.device}, q on {q.device}: move it there")


def _state_of_no_tokens(
    q: Tensor, v: Tensor, normalize: bool, segments: Tensor | None, state: LinearState | None
) -> LinearState:
    if state is not None:
        return state
    fresh = empty_state(q, v, normalize)
    if segments is None:
        return fresh
    # A state of zeros belongs to any document, so any number is right.
    return fresh._replace(segment=segments.new_zeros(segments.shape[0]))
