"""The typed configuration of the network; defaults are in conf/model/ and conf/mixer/."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from conf.settings import RowLength, RowLengthOrZero, Settings
from model.fields import InitStd, NormEpsilon, RopeBase, Taps, Width
from model.linear_config import LinearSettings


class SoftmaxSettings(Settings):
    """Softmax attention: grouped-query heads; rotary, ALiBi or no positions; full or windowed."""

    before: ClassVar = {"anchors": 0, "alibi": False, "conv_width": 0, "recall_init": False}

    kind: Literal["softmax"]
    heads: Width = Field(description="query heads")
    kv_heads: Width = Field(description="key and value heads; divides heads")
    head_dim: Width | None = Field(description="width of a head; null: d_model / heads")
    rope_base: RopeBase | None = Field(description="base of the rotary angles; null: none")
    window: RowLength | None = Field(description="tokens a query sees, itself included; null: all")
    anchors: RowLengthOrZero = Field(
        description="first tokens of a document that stay visible outside of the window"
    )
    alibi: bool = Field(description="scores fall linearly with distance, by a slope per head")
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
        if self.head_dim is not None and self.rope_base is not None and self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} is odd, and rotary positions turn pairs: give an even "
                "head_dim, or rope_base=null"
            )
        if self.anchors and self.window is None:
            raise ValueError(
                f"anchors={self.anchors} needs a window: without one every query sees the whole "
                "document; give a window, such as 256, or anchors=0"
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


MixerSettings = Annotated[SoftmaxSettings | LinearSettings, Field(discriminator="kind")]


class ModelSettings(Settings):
    """The network: width, layer mix and the mixers that the mix names."""

    layers: str = Field(description="the layer pattern, such as (gla gla retnet softmax)*2")
    d_model: Width
    ffn_dim: Width = Field(description="hidden width of the SwiGLU feed-forward layer")
    tie_embeddings: bool = Field(description="use the embedding matrix as the output head")
    norm_eps: NormEpsilon
    init: Literal["depth_scaled", "zero_residual"] = Field(
        description="depth_scaled: normal, projections back into the residual stream divided by "
        "sqrt(2 layers); zero_residual: those projections start at 0"
    )
    init_std: InitStd = Field(description="standard deviation of matrices, the head's included")
    embedding_std: InitStd = Field(
        description="standard deviation of the embedding (and with it of a tied head)"
    )
    mixers: dict[str, MixerSettings]

    @model_validator(mode="after")
    def _tied_head_is_a_head(self):
        if self.tie_embeddings and self.embedding_std > 5 * self.init_std:
            raise ValueError(
                f"tie_embeddings=true with embedding_std={self.embedding_std}: the head would "
                f"start {self.embedding_std / self.init_std:.0f} times as large as "
                f"init_std={self.init_std} says, and sure of wrong tokens; give "
                f"model.embedding_std={self.init_std}, or tie_embeddings=false"
            )
        return self


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
