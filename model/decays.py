"""Decays D_t: how fast the state of a linear mixer forgets.

A decay is a module whose `forward(x)` maps block inputs [B, T, d_model] to the natural logarithm
of the decay, float32 and at most 0, in one of the shapes that `kernels.linear_attention` reads:
None, [H], [B, T, H] or [B, T, H, K]; `family` names it. Decays are float32 whatever the model's
dtype: in bfloat16 RetNet's slower heads round to exactly 1.

`memory_length` M, in tokens, is the number of steps after which a decay has faded to 1/e:
log-decay = -1/M.
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import KDA_BOUND, LinearSettings

DEFAULT_MEMORY = (16.0, 512.0)


class NoDecay(nn.Module):
    """Nothing is forgotten (linear attention)."""

    family = "none"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> None:
        return None

    def init_weights(self) -> None:
        pass


class RetNetDecay(nn.Module):
    """Fixed per head: gamma_h = 1 - 2^(-5-h) (Sun et al., 2023, Retentive Network)."""

    family = "head"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int) -> None:
        super().__init__()
        # Not a buffer: `model.to(bfloat16)` would round it.
        self.log_decay = tuple(math.log1p(-(2.0 ** (-5 - h))) for h in range(settings.heads))

    def forward(self, x: Tensor) -> Tensor:
        return _constant(self.log_decay, x.device)

    def init_weights(self) -> None:
        pass


class LearnedDecay(nn.Module):
    """One learned constant per head, log-decay = -exp(-log_memory_h)."""

    family = "head"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int) -> None:
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

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int) -> None:
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
        log_gate = (
            -self.temperature / memory
        )  # logsigmoid(b), so b = log_gate - log(1 - e^log_gate)
        with torch.no_grad():
            self.up.bias.copy_(log_gate - torch.log(-torch.expm1(log_gate)))


class Mamba2Decay(nn.Module):
    """Per head and token: -exp(A_h) softplus(x W + b) (Dao and Gu, 2024; Gated DeltaNet, 2025).

    exp(A) starts at 1, and the biases where softplus(b) = 1 / M with the memory lengths of the
    heads spread between the two ends of `memory_length`.
    """

    family = "scalar"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int) -> None:
        super().__init__()
        self.memory = tuple(settings.memory_length or DEFAULT_MEMORY)
        self.gate = nn.Linear(d_model, settings.heads, bias=False)
        self.bias = nn.Parameter(torch.empty(settings.heads))
        self.log_rate = nn.Parameter(torch.empty(settings.heads))

    def forward(self, x: Tensor) -> Tensor:
        steps = F.softplus(self.gate(x).float() + self.bias.float())
        return -self.log_rate.float().exp() * steps

    def init_weights(self) -> None:
        nn.init.zeros_(self.log_rate)
        rate = 1 / _log_spaced(self.memory, self.bias.numel())
        with torch.no_grad():
            self.bias.copy_(torch.log(torch.expm1(rate)))


class KDADecay(nn.Module):
    """Per key channel and token: -exp(A_h) softplus(x W1 W2 + b) (Kimi Linear, 2025).

    The rank of W1 W2 is the width of a value head unless `decay_rank` is given. Starts as
    `Mamba2Decay`, every head with the whole range of memory lengths.
    """

    family = "channel"

    def __init__(self, settings: LinearSettings, d_model: int, key_dim: int) -> None:
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


DECAYS: dict[str, type[nn.Module]] = {
    "none": NoDecay,
    "retnet": RetNetDecay,
    "learned": LearnedDecay,
    "gla": GLADecay,
    "mamba2": Mamba2Decay,
    "kda": KDADecay,
    "kda_bounded": BoundedKDADecay,
}


def _log_spaced(ends: tuple[float, ...], count: int) -> Tensor:
    low, high = math.log(ends[0]), math.log(ends[1])
    if count == 1:
        return torch.tensor([math.exp((low + high) / 2)], dtype=torch.float64)
    return torch.linspace(low, high, count, dtype=torch.float64).exp()


def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A float32 tensor made once per device: no host-to-device copy at every call."""
    if torch.compiler.is_compiling():  # becomes a constant of the program, made once as well
        return torch.tensor(values, dtype=torch.float32, device=device)
    return _cached_constant(values, device)


@functools.lru_cache(maxsize=64)
def _cached_constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return torch.tensor(values, dtype=torch.float32, device=device)
