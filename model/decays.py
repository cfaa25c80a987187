"""Decays D_t: how fast the state of a linear mixer forgets.

A decay is a module whose `forward(x)` maps block inputs [B, T, d_model] to the natural logarithm
of the decay, float32 and at most 0, in one of the shapes that `kernels.linear_attention` reads:
None, [H], [B, T, H] or [B, T, H, K]; `family` names it. Decays are float32 whatever the model's
dtype: in bfloat16 RetNet's slower heads round to exactly 1.

A decay is made with (settings, d_model, key_dim, depth): `key_dim` counts the channels of the
mapped keys of all heads, `depth` says which block of the model it is in.

`memory_length` M, in tokens, is the number of steps after which a decay has faded to 1/e:
log-decay = -1/M.
"""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention_mask import alibi_slope
from model.buffers import Float32Buffers
from model.linear_config import KDA_BOUND, LinearSettings
from model.pattern import Depth

DEFAULT_MEMORY = (16.0, 512.0)
# Where Mamba-2 starts (Dao and Gu, 2024): rates uniform, steps uniform in the logarithm.
MAMBA2_RATES = (1.0, 16.0)
MAMBA2_STEPS = (1e-3, 0.1)


class NoDecay(nn.Module):
    """Nothing is forgotten (linear attention)."""

    family = "none"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int, depth: Depth) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> None:
        return None

    def init_weights(self) -> None:
        pass


class FixedDecay(Float32Buffers):
    """Constant per head.

    log_decays: (heads, depth) -> the logarithm of each head's decay.
    """

    family = "head"

    def __init__(
        self,
        log_decays: Callable[[int, Depth], list[float]],
        settings: LinearSettings,
        d_model: int,
        key_dim: int,
        depth: Depth,
    ) -> None:
        super().__init__()
        self.values = tuple(log_decays(settings.heads, depth))
        self.register_buffer("log_decay", torch.empty(settings.heads), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.log_decay

    def init_weights(self) -> None:
        self.log_decay.copy_(torch.tensor(self.values, device="cpu"))


def retnet(heads: int, depth: Depth) -> list[float]:
    """1 - 2^(-5-h) (Sun et al., 2023, Retentive Network)."""
    return [math.log1p(-(2.0 ** (-5 - h))) for h in range(heads)]


def retnet_lm(heads: int, depth: Depth) -> list[float]:
    """From 1 - 1/32 to 1 - 1/512, evenly in the logarithm: the same paper's language models."""
    steps = max(heads - 1, 1)
    return [math.log1p(-(2.0 ** (-5 - 4 * h / steps))) for h in range(heads)]


def alibi(heads: int, depth: Depth) -> list[float]:
    """ALiBi's slopes (Press et al., 2022): here exp(-slope * distance) multiplies the weights."""
    head = torch.arange(heads, device="cpu")
    return (-alibi_slope(head, heads, torch.float64)).tolist()


def lightning(heads: int, depth: Depth) -> list[float]:
    """ALiBi's slopes, smaller in later blocks: times 1 - l / (L - 1) + 1e-5 in block l of L.

    Source: Qin et al., 2024, Lightning Attention-2 and TransNormerLLM.
    """
    share = 1 - depth.index / max(depth.count - 1, 1) + 1e-5
    return [share * log_decay for log_decay in alibi(heads, depth)]


class LearnedDecay(nn.Module):
    """One learned constant per head, log-decay = -exp(-log_memory_h)."""

    family = "head"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int, depth: Depth) -> None:
        super().__init__()
        self.memory = tuple(settings.memory_length or DEFAULT_MEMORY)
        self.log_memory = nn.Parameter(torch.empty(settings.heads))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.exp(-self.log_memory.float())

    def init_weights(self) -> None:
        with torch.no_grad():
            self.log_memory.copy_(_log_spaced(self.memory, self.log_memory.numel()).log())


class GLADecay(nn.Module):
    """Per key channel and token: logsigmoid(x W1 W2 + b) / temperature (Yang et al., 2024, GLA).

    The bias starts where the memory lengths of the channels are spread between the two ends of
    `memory_length`: logsigmoid(b) = -temperature / M.
    """

    family = "channel"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int, depth: Depth) -> None:
        super().__init__()
        self.heads = settings.heads
        self.temperature = settings.decay_temperature or 16.0
        self.memory = tuple(settings.memory_length or DEFAULT_MEMORY)
        rank = settings.decay_rank or 16
        self.down = nn.Linear(d_model, rank, bias=False)
        self.up = nn.Linear(rank, key_dim)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(self.down(x)).float()
        log_decay = F.logsigmoid(gate) / self.temperature
        return log_decay.unflatten(-1, (self.heads, -1))

    def init_weights(self) -> None:
        key_dim = self.up.out_features
        # Every head gets the whole range: channels of one head forget at different speeds.
        memory = _log_spaced(self.memory, key_dim // self.heads).repeat(self.heads)
        with torch.no_grad():
            self.up.bias.copy_(_gate_bias(memory, self.temperature))


class SimpleGLADecay(nn.Module):
    """Per head and token: logsigmoid(x W + b) / temperature, `GLADecay` with one decay for a head.

    The data-dependent scalar decay in the ablation of Yang et al., 2024 (table 4), which
    flash-linear-attention calls simple GLA. The memory lengths of the heads start spread between
    the two ends of `memory_length`.
    """

    family = "scalar"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int, depth: Depth) -> None:
        super().__init__()
        self.temperature = settings.decay_temperature or 16.0
        self.memory = tuple(settings.memory_length or DEFAULT_MEMORY)
        self.gate = nn.Linear(d_model, settings.heads)

    def forward(self, x: Tensor) -> Tensor:
        return F.logsigmoid(self.gate(x).float()) / self.temperature

    def init_weights(self) -> None:
        memory = _log_spaced(self.memory, self.gate.out_features)
        with torch.no_grad():
            self.gate.bias.copy_(_gate_bias(memory, self.temperature))


class Mamba2Decay(nn.Module):
    """Per head and token: -exp(A_h) dt, dt = softplus(x W + b) (Dao and Gu, 2024, Mamba-2).

    Starts as published: exp(A) uniform in 1 to 16, softplus(b) uniform in the logarithm in 0.001 to
    0.1. With `memory_length`, exp(A) starts at 1, and softplus(b) at 1 / M with the memory lengths
    of the heads spread between its two ends.
    """

    family = "scalar"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int, depth: Depth) -> None:
        super().__init__()
        self.memory = settings.memory_length
        self.gate = nn.Linear(d_model, settings.heads, bias=False)
        self.bias = nn.Parameter(torch.empty(settings.heads))
        self.log_rate = nn.Parameter(torch.empty(settings.heads))

    def forward(self, x: Tensor) -> Tensor:
        return self.of_steps(self.steps(x))

    def steps(self, x: Tensor) -> Tensor:
        """dt, float32 [B, T, H]."""
        return F.softplus(self.gate(x).float() + self.bias.float())

    def of_steps(self, steps: Tensor) -> Tensor:
        """The log-decay of steps dt."""
        return -self.log_rate.float().exp() * steps

    @torch.no_grad()
    def init_weights(self) -> None:
        if self.memory is None:
            self.log_rate.uniform_(*MAMBA2_RATES).log_()
            low, high = MAMBA2_STEPS
            steps = torch.empty_like(self.bias, dtype=torch.float64)
            steps.uniform_(math.log(low), math.log(high)).exp_()
        else:
            nn.init.zeros_(self.log_rate)
            steps = 1 / _log_spaced(tuple(self.memory), self.bias.numel())
        self.bias.copy_(torch.log(torch.expm1(steps)))


class KDADecay(nn.Module):
    """Per key channel and token: -exp(A_h) softplus(x W1 W2 + b) (Kimi Linear, 2025).

    The rank of W1 W2 is the width of a value head unless `decay_rank` is given. Starts as
    `Mamba2Decay`, every head with the whole range of memory lengths.
    """

    family = "channel"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int, depth: Depth) -> None:
        super().__init__()
        self.heads = settings.heads
        self.memory = tuple(settings.memory_length or DEFAULT_MEMORY)
        rank = settings.decay_rank or int(d_model * settings.expand_v) // settings.heads
        self.down = nn.Linear(d_model, rank, bias=False)
        self.up = nn.Linear(rank, key_dim, bias=False)
        self.bias = nn.Parameter(torch.empty(key_dim))
        self.log_rate = nn.Parameter(torch.empty(settings.heads))

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(self.down(x)).float() + self.bias.float()
        return self.log_decay(gate.unflatten(-1, (self.heads, -1)), self.log_rate.float().exp())

    def log_decay(self, gate_bthk: Tensor, rate_h: Tensor) -> Tensor:
        return -rate_h[:, None] * F.softplus(gate_bthk)

    def bias_of(self, rate: Tensor) -> Tensor:
        """Where log_decay(bias, 1) = -rate."""
        return torch.log(torch.expm1(rate))

    def init_weights(self) -> None:
        nn.init.zeros_(self.log_rate)
        memory = _log_spaced(self.memory, self.bias.numel() // self.heads).repeat(self.heads)
        with torch.no_grad():
            self.bias.copy_(self.bias_of(1 / memory))


class BoundedKDADecay(KDADecay):
    """`KDADecay` with -5 sigmoid(exp(A_h) (x W1 W2 + b)): a token keeps at least exp(-5)."""

    def log_decay(self, gate_bthk: Tensor, rate_h: Tensor) -> Tensor:
        return -KDA_BOUND * torch.sigmoid(rate_h[:, None] * gate_bthk)

    def bias_of(self, rate: Tensor) -> Tensor:
        return torch.logit(rate / KDA_BOUND)


class HGRN2Decay(nn.Module):
    """Per key channel and token: log(b + (1 - b) sigmoid(x W)) (Qin et al., 2024, HGRN2).

    b is a lower bound per channel, higher in later blocks, so that these remember longer. It starts
    at l / L in block l of L, where the source's starts, and is learned; block 0 has none. In the
    source all bounds come from one softmax over the blocks and always rise; here each block has its
    own.
    """

    family = "channel"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int, depth: Depth) -> None:
        super().__init__()
        self.heads = settings.heads
        self.start = depth.index / depth.count
        self.gate = nn.Linear(d_model, key_dim, bias=False)
        self.bound_logit = nn.Parameter(torch.empty(key_dim)) if depth.index else None

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).float()
        log_decay = F.logsigmoid(gate)
        if self.bound_logit is not None:
            log_decay = _bounded(log_decay, gate, self.bound_logit.float())
        return log_decay.unflatten(-1, (self.heads, -1))

    @torch.no_grad()
    def init_weights(self) -> None:
        if self.bound_logit is not None:
            self.bound_logit.fill_(math.log(self.start / (1 - self.start)))


def _bounded(log_sigmoid: Tensor, gate: Tensor, bound_logit: Tensor) -> Tensor:
    """log(b + (1 - b) sigmoid(gate)), b = sigmoid(bound_logit), accurate near 0 and near -inf."""
    log_rest = F.logsigmoid(-bound_logit)  # log(1 - b)
    forgotten = torch.exp(log_rest + F.logsigmoid(-gate))
    near_1 = torch.log1p(-forgotten.clamp(max=0.5))
    elsewhere = torch.logaddexp(F.logsigmoid(bound_logit), log_rest + log_sigmoid)
    return torch.where(forgotten < 0.5, near_1, elsewhere)


DECAYS: dict[str, Callable[[LinearSettings, int, int, Depth], nn.Module]] = {
    "none": NoDecay,
    "retnet": functools.partial(FixedDecay, retnet),
    "retnet_lm": functools.partial(FixedDecay, retnet_lm),
    "lightning": functools.partial(FixedDecay, lightning),
    "alibi": functools.partial(FixedDecay, alibi),
    "learned": LearnedDecay,
    "gla": GLADecay,
    "simple_gla": SimpleGLADecay,
    "hgrn2": HGRN2Decay,
    "mamba2": Mamba2Decay,
    "kda": KDADecay,
    "kda_bounded": BoundedKDADecay,
}


def _gate_bias(memory: Tensor, temperature: float) -> Tensor:
    """b with logsigmoid(b) / temperature = -1 / memory."""
    log_gate = -temperature / memory
    return log_gate - torch.log(-torch.expm1(log_gate))


def _log_spaced(ends: tuple[float, ...], count: int) -> Tensor:
    low, high = math.log(ends[0]), math.log(ends[1])
    if count == 1:
        return torch.tensor([math.exp((low + high) / 2)], dtype=torch.float64)
    return torch.linspace(low, high, count, dtype=torch.float64).exp()
