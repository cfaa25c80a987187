"""The settings of the sparse-plus-linear mixer, and which of its options make sense together."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from conf.settings import Count, CountOrZero, RowLength, RowLengthOrZero, Settings
from model.feature_maps import FEATURE_MAPS
from model.fields import RandomAnchorCount, RopeBase, Width
from model.linear_config import MAP_OPTIONS, FeatureMapName, check_readers, either

# Of cosformer the features of a key depend on its position, and its options on the longest row.
MAPS = tuple(n for n, m in FEATURE_MAPS.items() if m.sign != "signed" and n != "cosformer")


class SparseLinearSettings(Settings):
    """Exact softmax attention over a window and anchors, linear attention over all other keys."""

    unit_keys: ClassVar = False

    kind: Literal["sparse_linear"]
    heads: Width
    head_dim: Width | None = Field(description="width of a head; null: d_model / heads")
    rope_base: RopeBase | None = Field(
        description="base of the rotary angles, of the linear part too if feature_map stands for a "
        "function of q.k; null: none"
    )
    qk_norm: bool = Field(
        description="RMSNorm of every head's query and key, before rotary positions"
    )
    window: RowLength = Field(description="tokens whose weights are exact, the query's included")
    window_heads: Width | None = Field(
        description="the first so many heads have the window, the others the query's token alone; "
        "null: all heads"
    )
    anchors: RowLengthOrZero = Field(
        description="first tokens of a document whose weights stay exact"
    )
    random_anchors: RandomAnchorCount = Field(
        description="so many random tokens behind the window whose weights are exact"
    )
    anchor_seed: CountOrZero | None = Field(
        description="which random anchors are drawn, with the block's number; null: 0"
    )
    anchor_heads: Width | None = Field(
        description="the last so many heads have the anchors; null: all heads"
    )
    feature_map: FeatureMapName
    random_features: Width | None = Field(
        description="favor: number of random features; null: 4 times the width of a head"
    )
    redraw_every: Count | None = Field(
        description="favor: optimizer steps after which the projection is drawn anew; null: never"
    )
    projection_seed: CountOrZero | None = Field(
        description="favor: which projections are drawn, with the block's number; null: 0"
    )
    dpfp_nu: Width | None = Field(description="dpfp: number of shifts; null: 1")
    output_gate: Literal["none", "swish", "sigmoid"] = Field(
        description="multiplies each channel before the output projection, from the block's input"
    )

    @model_validator(mode="after")
    def _options_make_sense(self):
        if self.feature_map not in MAPS:
            reason = (
                "its features depend on positions, and a key is mapped when it leaves the window"
                if self.feature_map == "cosformer"
                else "its kernel is signed, and a sum of weights with the softmax's must not vanish"
            )
            raise ValueError(
                f"feature_map={self.feature_map}: {reason}; use feature_map={either(MAPS)}"
            )
        check_readers(self, "feature_map", MAP_OPTIONS)
        self._check_heads()
        if self.anchor_seed is not None and not self.random_anchors:
            raise ValueError(
                f"anchor_seed={self.anchor_seed} is not read with random_anchors=0: leave "
                "anchor_seed=null, or give random_anchors, such as 16"
            )
        if self.head_dim is not None:
            self.check_head_dim(self.head_dim, f"head_dim={self.head_dim}")
        return self

    def _check_heads(self) -> None:
        for name, count in (
            ("window_heads", self.window_heads),
            ("anchor_heads", self.anchor_heads),
        ):
            if count is not None and count > self.heads:
                raise ValueError(
                    f"{name}={count} of heads={self.heads}: give at most {self.heads}, or null for "
                    "all"
                )
        if self.anchor_heads is not None and not self.anchors and not self.random_anchors:
            raise ValueError(
                f"anchor_heads={self.anchor_heads} with anchors=0, random_anchors=0: there are no "
                "anchors; give anchors=4, or anchor_heads=null"
            )

    def check_head_dim(self, head_dim: int, origin: str) -> None:
        """Raises ValueError if rotary positions cannot turn a head of this width, from `origin`."""
        if self.rope_base is not None and head_dim % 2:
            raise ValueError(
                f"{origin} is an odd head width, and rotary positions turn pairs: give an even "
                "head_dim, or rope_base=null"
            )
