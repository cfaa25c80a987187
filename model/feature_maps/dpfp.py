"""DPFP, the deterministic parameter-free projection (Schlag et al., 2021).

    r = (relu(x), relu(-x))      phi(x) = r_i r_{i+s}  for all i (cyclic) and s = 1 .. nu

Different vectors share few features, so that a state holds more keys apart.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from model.feature_maps.base import VectorMap
from model.linear_config import LinearSettings
from model.pattern import Depth


class DPFP(VectorMap):
    def __init__(self, settings: LinearSettings, heads: int, dim: int, depth: Depth) -> None:
        nu = settings.dpfp_nu or 1
        if nu >= 2 * dim:
            raise ValueError(
                f"dpfp_nu={nu} with keys of {dim} channels: shifts repeat from {2 * dim} on; give "
                f"1 to {2 * dim - 1}"
            )
        super().__init__(partial(dpfp, nu=nu), 2 * dim * nu)


def dpfp(x: Tensor, nu: int) -> Tensor:
    """[..., D] -> [..., 2 D nu]."""
    halves = torch.cat((F.relu(x), F.relu(-x)), dim=-1)
    return torch.cat([halves * halves.roll(shift, dims=-1) for shift in range(1, nu + 1)], dim=-1)
