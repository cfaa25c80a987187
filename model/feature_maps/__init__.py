"""Feature maps phi: what a linear mixer does to queries and keys before their product.

A new map is one function or class and one line in `FEATURE_MAPS`. A function of [..., D] in
elementary.py keeps the width. A class takes (settings, heads, dim, depth) and is a module with

- `features`: the width of phi(x) for vectors of `dim` channels;
- `forward(q, k, info, state=None, exists=None) -> Mapped`: see base.py, where `VectorMap` does this
  for maps that treat every query and key alone. `exists`, bool [B, T, H], is False where k is no
  key, and what comes of it will not be read; others must not depend on it;
- `flops_per_token`: of both, two per multiply-add of matrix products;
- `state_bytes`: what decoding carries for the map, per row.

This file knows the maps by the names of their code: settings are checked without loading torch.
"""

from importlib import import_module
from typing import Any, Literal, NamedTuple


class FeatureMap(NamedTuple):
    """What is known of a map before it is built.

    code: module of this package and name in it.
    sign: what a denominator, the sum of the weights phi(q).phi(k), depends on.
        features: no feature is negative, so no weight is, whatever the decay;
        kernel: phi(q).phi(k) > 0, but single features may be negative;
        signed: neither.
    options: the settings that only this map reads.
    of_dot_product: phi(q).phi(k) stands for a function of q.k, so that rotary positions come first.
    ratio_only: features are known up to a factor per token, which cancels in a ratio.
    """

    code: str
    sign: Literal["features", "kernel", "signed"]
    options: tuple[str, ...] = ()
    of_dot_product: bool = False
    ratio_only: bool = False

    @property
    def elementary(self) -> bool:
        """It has neither parameters nor options, and keeps the width."""
        return self.code.startswith("elementary.")


FEATURE_MAPS = {
    "identity": FeatureMap("elementary.identity", "signed"),
    "elu1": FeatureMap("elementary.elu1", "features"),
    "relu": FeatureMap("elementary.relu", "features"),
    "squared_relu": FeatureMap("elementary.squared_relu", "features"),
    "silu": FeatureMap("elementary.silu", "signed"),
    "softmax": FeatureMap("elementary.softmax", "features"),
    "exp": FeatureMap("exponential.Exp", "features", ratio_only=True),
    "favor": FeatureMap(
        "favor.Favor", "features", ("random_features", "redraw_every", "projection_seed"),
        of_dot_product=True, ratio_only=True,
    ),
    "taylor": FeatureMap("taylor.Taylor", "kernel", of_dot_product=True),
    "cosformer": FeatureMap("cosformer.CosFormer", "features", ("max_length",)),
    "hedgehog": FeatureMap("hedgehog.Hedgehog", "features", ratio_only=True),
    "dpfp": FeatureMap("dpfp.DPFP", "features", ("dpfp_nu",)),
}  # fmt: skip


def build_feature_map(name: str, settings: Any, heads: int, dim: int, depth: Any) -> Any:
    """The module of a map.

    Args:
        settings: of the mixer, for the map's own options.
        heads: of queries and keys.
        dim: channels of a query or key.
        depth: `model.pattern.Depth` of the block.
    """
    from model.feature_maps.base import VectorMap

    module, attribute = FEATURE_MAPS[name].code.split(".")
    found = getattr(import_module(f"{__name__}.{module}"), attribute)
    if FEATURE_MAPS[name].elementary:
        return VectorMap(found, dim)
    return found(settings, heads, dim, depth)
