"""FAVOR+: positive random features of the softmax kernel (Choromanski et al., 2021, Performer).

    phi(x) = m^-1/2 exp(W x' - |x'|^2 / 2)    x' = x d^-1/4    E[phi(q).phi(k)] = exp(q.k / sqrt(d))

W [m, d] has orthogonal rows in blocks of d, with the lengths of rows of independent normal numbers.
It is a pure function of the mixer's `projection_seed`, the block's number in the model and the
number of redraws, so that it is the same on all ranks and after a restart. It is saved with the
weights, and changes in training only, at multiples of `redraw_every` optimizer steps. A run that
starts from another's weights draws its own at once, or with `redraw_every: null` keeps the other's.
"""

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from model.buffers import Float32Buffers
from model.feature_maps.exponential import Exponential
from model.linear_config import LinearSettings
from model.pattern import Depth

_OF_ANOTHER_RUN = -1


class Favor(Exponential, Float32Buffers):
    def __init__(self, settings: LinearSettings, heads: int, dim: int, depth: Depth) -> None:
        super().__init__(settings, heads)
        self.dim = dim
        self.features = settings.random_features or 4 * dim
        self.every = settings.redraw_every
        self.seed = (settings.projection_seed or 0, depth.index)
        self.flops_per_token = 2 * heads * 2 * dim * self.features
        self.register_buffer("projection", torch.empty(self.features, dim))
        self.register_buffer("draw", torch.zeros((), dtype=torch.int64))
        self._draw: int | None = None

    def logits(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._logits(q), self._logits(k)

    def _logits(self, x: Tensor) -> Tensor:
        x = x * self.dim**-0.25
        half_square = x.square().sum(-1, keepdim=True) / 2
        projection = self.projection.to(x.dtype)
        return F.linear(x, projection) - half_square - math.log(self.features) / 2

    def init_weights(self) -> None:
        self._set(0)

    def redraw(self, steps: int) -> None:
        """Takes the projection of a training step after `steps` optimizer steps."""
        if self.every is None:
            return
        number = steps // self.every
        if number != self.current_draw():
            self._set(number)

    def forget_draw(self) -> None:
        """Says that the projection is of another run: where it is redrawn at all, the next step is
        one where it is."""
        if self.every is not None:
            self.draw.fill_(_OF_ANOTHER_RUN)
            self._draw = _OF_ANOTHER_RUN

    def current_draw(self) -> int:
        """The number of the projection. Read from the device once after loading."""
        if self._draw is None:
            self._draw = int(self.draw)
        return self._draw

    @torch.no_grad()
    def _set(self, number: int) -> None:
        # In place: a buffer that is replaced would no longer be the one that wrappers synchronise.
        self.projection.copy_(orthogonal_rows(self.features, self.dim, (*self.seed, number)))
        self.draw.fill_(number)
        self._draw = number

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._draw = None


def orthogonal_rows(rows: int, dim: int, seed: tuple[int, ...]) -> Tensor:
    """float32 [rows, dim]: each row as if of normal numbers, orthogonal in blocks of `dim` rows."""
    digest = hashlib.sha256(repr(seed).encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    q, r = torch.linalg.qr(normal(-(-rows // dim), dim, dim))
    # Uniform among orthogonal matrices only with this choice of signs (Mezzadri, 2007).
    directions = (q * r.diagonal(dim1=1, dim2=2).sign()[:, None]).flatten(0, 1)[:rows]
    lengths = normal(rows, dim).norm(dim=1, keepdim=True)
    return (lengths * directions).float()
