"""The settings of softmax attention, and which of its options make sense together."""

import math
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from conf.settings import CountOrZero, RowLength, RowLengthOrZero, Settings
from model.fields import RandomAnchorCount, RopeBase, RopeFraction, Taps, Width


class SoftmaxSettings(Settings):
    """Softmax attention: grouped-query heads; rotary, ALiBi or no positions; full or windowed."""

    before: ClassVar = {
        "rope_fraction": 1.0,
        "qk_norm": False,
        "anchors": 0,
        "random_anchors": 0,
        "anchor_seed": None,
        "sinks": False,
        "alibi": False,
        "output_gate": "none",
        "conv_width": 0,
        "recall_init": False,
    }

    kind: Literal["softmax"]
    heads: Width = Field(description="query heads")
    kv_heads: Width = Field(description="key and value heads; divides heads")
    head_dim: Width | None = Field(description="width of a head; null: d_model / heads")
    rope_base: RopeBase | None = Field(description="base of the rotary angles; null: none")
    rope_fraction: RopeFraction = Field(
        description="share of a head's channels that rotary positions turn, the first ones"
    )
    qk_norm: bool = Field(
        description="RMSNorm of every head's query and key, before rotary positions"
    )
    window: RowLength | None = Field(description="tokens a query sees, itself included; null: all")
    anchors: RowLengthOrZero = Field(
        description="first tokens of a document that stay visible outside of the window"
    )
    random_anchors: RandomAnchorCount = Field(
        description="so many tokens behind the window stay visible, the same for all queries at a "
        "position, and are replaced by later ones at random"
    )
    anchor_seed: CountOrZero | None = Field(
        description="which random anchors are drawn, with the block's number; null: 0"
    )
    sinks: bool = Field(
        description="a learned logit per head takes part in the denominator, so that a query may "
        "look at nothing"
    )
    alibi: bool = Field(description="scores fall linearly with distance, by a slope per head")
    output_gate: Literal["none", "swish", "sigmoid"] = Field(
        description="multiplies each channel before the output projection, from the block's input"
    )
    conv_width: Taps = Field(
        description="taps of the short convolution of keys and values; 0: none"
    )
    recall_init: bool = Field(
        description="start as a look-up of what followed earlier copies of a token"
    )

    @model_validator(mode="after")
    def _options_make_sense(self):
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}; "
                f"allowed: {', '.join(str(n) for n in _divisors(self.heads))}"
            )
        if self.rope_base is None and self.rope_fraction != 1:
            raise ValueError(
                f"rope_fraction={self.rope_fraction} with rope_base=null: there are no rotary "
                "positions to turn channels by; give rope_base=10000.0, or rope_fraction=1.0"
            )
        if self.head_dim is not None:
            self.turned_channels(self.head_dim, f"head_dim={self.head_dim}")
        for name, count in (("anchors", self.anchors), ("random_anchors", self.random_anchors)):
            if count and self.window is None:
                raise ValueError(
                    f"{name}={count} needs a window: without one every query sees the whole "
                    f"document; give a window, such as 256, or {name}=0"
                )
        if self.anchor_seed is not None and not self.random_anchors:
            raise ValueError(
                f"anchor_seed={self.anchor_seed} is not read with random_anchors=0: leave "
                "anchor_seed=null, or give random_anchors, such as 16"
            )
        if self.recall_init and self.conv_width < 2:
            raise ValueError(
                f"recall_init=true with conv_width={self.conv_width}: keys must see the token "
                "before them; give conv_width=4, or recall_init=false"
            )
        if self.alibi and self.rope_base is not None:
            raise ValueError(
                f"alibi=true with rope_base={self.rope_base}: one kind of positions per mixer; "
                "use rope_base=null, or alibi=false"
            )
        return self

    def turned_channels(self, head_dim: int, origin: str) -> int:
        """How many channels of a head of this width, which is from `origin`, rotary positions turn.

        Raises:
            ValueError: it is no even number, and they turn pairs.
        """
        if self.rope_base is None:
            return 0
        if head_dim % 2:
            raise ValueError(
                f"{origin} is an odd head width, and rotary positions turn pairs: give an even "
                "head_dim, or rope_base=null"
            )
        exact = head_dim * self.rope_fraction
        turned = round(exact)
        if turned % 2 or not turned or not math.isclose(turned, exact, rel_tol=1e-4):
            near = max(2, turned // 2 * 2) / head_dim
            raise ValueError(
                f"rope_fraction={self.rope_fraction} of {origin} is {exact:g} channels, and rotary "
                f"positions turn pairs: give a share with an even number, such as {near:g}"
            )
        return turned


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
