"""A linear mixer by its formulas: float64, one token after another, no code of the mixer's.

    S_t = D_t S_{t-1} + phi(k_t) u_t^T      y_t = phi(q_t)^T S_t [ / phi(q_t)^T z_t ]

Only the settings, the weights and the constants of fixed decays come from the mixer. Rows are one
document [T, d_model].
"""

import math

import torch
from torch import Tensor

ELEMENTARY = {
    "identity": lambda x: x,
    "elu1": lambda x: torch.where(x > 0, x + 1, x.exp()),
    "relu": lambda x: x.clamp(min=0),
    "squared_relu": lambda x: x.clamp(min=0) ** 2,
    "silu": lambda x: x / (1 + (-x).exp()),
    "softmax": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
}


def mixer_output(mixer, x_td: Tensor) -> Tensor:
    """What `mixer(x)` is meant to return, float64 [T, d_model]."""
    s, x = mixer.settings, x_td.double()
    heads = s.heads
    w = {name: value.detach().double() for name, value in mixer.state_dict().items()}
    w |= {name: value.double() for name, value in mixer.named_buffers()}

    def projected(name: str) -> Tensor:
        y, taps = x @ w[f"{name}.weight"].T, w.get(f"conv_{name}.weight")
        return y if taps is None else ELEMENTARY["silu"](convolved(y, taps))

    v = projected("v").unflatten(-1, (heads, -1))
    log_decay, dt = decay(s, w, x, mixer.features)
    turns_first = s.rope_base is not None and s.feature_map in ("favor", "taylor")

    def mapped(side: str) -> Tensor:
        y = projected(side).unflatten(-1, (s.qk_heads or heads, -1))
        return features(s, w, turned(y, s.rope_base) if turns_first else y, side)

    q, k = mapped("q"), 1 - log_decay.exp() if s.write == "complement" else mapped("k")
    if s.qk_norm:
        q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    if s.rope_base is not None and not turns_first:
        q, k = (turned(y, s.rope_base) for y in (q, k))
    q, k = (y.repeat_interleave(heads // y.shape[1], dim=1) for y in (q, k))

    beta = None
    if s.write == "delta":
        beta = s.beta_max / (1 + (-(x @ w["beta.weight"].T + w["beta.bias"])).exp())
    written = v * dt[..., None] if s.write == "timestep" else v
    y = recurrence(q, k, written, log_decay, beta, s.normalize, mixer.features**-0.5)

    if s.skip:
        y = y + w["skip"][:, None] * v
    gate = 1
    if s.output_gate != "none":
        gate = (x @ w["gate.weight"].T).view_as(y)
        gate = gate / (1 + (-gate).exp()) if s.output_gate == "swish" else 1 / (1 + (-gate).exp())
    if s.output_norm:
        before = y * gate if s.norm_after_gate else y
        root = (before.square().mean(-1, keepdim=True) + mixer.norm.eps).sqrt()
        y = before / root * w["norm.weight"] * (1 if s.norm_after_gate else gate)
    else:
        y = y * gate
    return y.flatten(-2) @ w["out.weight"].T


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None,
    normalize: bool, scale: float,
) -> Tensor:  # fmt: skip
    """Token by token; q, k [T, H, K], v [T, H, V], log_decay [T, H, K] or None, beta [T, H]."""
    state = q.new_zeros(*k.shape[1:], v.shape[-1])
    sums, outputs = torch.zeros_like(k[0]), []
    for t in range(len(q)):
        kept = 1.0 if log_decay is None else log_decay[t].exp()[..., None]
        state = kept * state
        sums = (sums * kept[..., 0] if log_decay is not None else sums) + k[t]
        u = v[t]
        if beta is not None:
            u = beta[t, :, None] * (u - torch.einsum("hk,hkv->hv", k[t], state))
        state = state + k[t, :, :, None] * u[:, None]
        y = torch.einsum("hk,hkv->hv", q[t], state)
        total = (q[t] * sums).sum(-1, keepdim=True)
        outputs.append(y / total.where(total != 0, 1) if normalize else scale * y)
    return torch.stack(outputs)


def decay(s, w: dict, x: Tensor, features: int) -> tuple[Tensor | None, Tensor | None]:
    """Log-decay [T, H, features], by the table of docs/mathematics.md; and the step dt [T, H]."""
    heads, name, dt = s.heads, s.decay, None

    def low_rank() -> Tensor:
        bias = w.get("decay.up.bias", w.get("decay.bias"))
        gate = x @ w["decay.down.weight"].T @ w["decay.up.weight"].T + bias
        return gate.unflatten(-1, (heads, -1))

    def softplus(y: Tensor) -> Tensor:
        return (1 + y.exp()).log()

    if name == "none":
        return None, None
    if name in ("retnet", "retnet_lm", "lightning", "alibi"):
        g = w["decay.log_decay"][:, None]
    elif name == "learned":
        g = -(-w["decay.log_memory"]).exp()[:, None]
    elif name == "gla":
        g = -softplus(-low_rank()) / (s.decay_temperature or 16)
    elif name == "simple_gla":
        gate = x @ w["decay.gate.weight"].T + w["decay.gate.bias"]
        g = (-softplus(-gate) / (s.decay_temperature or 16))[..., None]
    elif name == "mamba2":
        dt = softplus(x @ w["decay.gate.weight"].T + w["decay.bias"])
        g = (-w["decay.log_rate"].exp() * dt)[..., None]
    elif name == "kda":
        g = -w["decay.log_rate"].exp()[:, None] * softplus(low_rank())
    elif name == "kda_bounded":
        g = -5 / (1 + (-w["decay.log_rate"].exp()[:, None] * low_rank()).exp())
    elif name == "hgrn2":
        opened = 1 / (1 + (-(x @ w["decay.gate.weight"].T)).exp())
        bound = 0.0
        if "decay.bound_logit" in w:
            bound = 1 / (1 + (-w["decay.bound_logit"]).exp())
        g = (bound + (1 - bound) * opened).log().unflatten(-1, (heads, -1))
    return g.expand(len(x), heads, features), dt


def features(s, w: dict, y: Tensor, side: str) -> Tensor:
    """phi of [T, H, D], by the table of docs/mathematics.md."""
    name, d = s.feature_map, y.shape[-1]
    scaled = y * d**-0.25
    if name in ELEMENTARY:
        return ELEMENTARY[name](y)
    if name == "exp":
        return y.exp()
    if name == "favor":
        rows = w["feature_map.projection"]
        half_square = scaled.square().sum(-1, keepdim=True) / 2
        return (scaled @ rows.T - half_square).exp() / math.sqrt(len(rows))
    if name == "taylor":
        x = [scaled[..., i] for i in range(d)]
        pairs = [x[i] * x[j] for i in range(d) for j in range(i + 1, d)]
        return torch.stack(
            [torch.ones_like(x[0]), *x, *(i * i / math.sqrt(2) for i in x), *pairs], dim=-1
        )
    if name == "cosformer":
        angle = torch.arange(len(y))[:, None, None] * (math.pi / 2 / (s.max_length or 8192))
        y = y.clamp(min=0)
        return torch.cat((y * angle.double().cos(), y * angle.double().sin()), dim=-1)
    if name == "hedgehog":
        z = torch.einsum("thd,hed->the", y, w[f"feature_map.weight_{side}"])
        z = z + w[f"feature_map.bias_{side}"]
        return torch.cat((z.exp(), (-z).exp()), dim=-1)
    assert name == "dpfp"
    r = torch.cat((y.clamp(min=0), (-y).clamp(min=0)), dim=-1)
    shifts = range(1, (s.dpfp_nu or 1) + 1)
    return torch.stack([r[..., i] * r[..., i - n] for n in shifts for i in range(2 * d)], dim=-1)


def turned(y_thd: Tensor, base: float) -> Tensor:
    """Channel pairs (i, i + D/2) as complex numbers, times exp(i position / base^(2 i / D))."""
    half = y_thd.shape[-1] // 2
    frequency = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(len(y_thd))[:, None, None] * frequency
    z = torch.complex(y_thd[..., :half], y_thd[..., half:]) * torch.polar(
        torch.ones_like(angle), angle
    )
    return torch.cat((z.real, z.imag), dim=-1)


def convolved(y: Tensor, taps: Tensor) -> Tensor:
    """y_t = sum_j taps_j y_{t-j}, with zeros before the first token."""
    padded = torch.cat((y.new_zeros(len(taps), y.shape[-1]), y))
    last = len(padded)
    return sum(tap * padded[len(taps) - j : last - j] for j, tap in enumerate(taps))
