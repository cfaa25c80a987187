"""The typed configuration of the network; defaults are in conf/model/ and conf/mixer/."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.settings import Settings
from model.conv_config import ConvSettings
from model.fields import InitStd, NormEpsilon, Width
from model.linear_config import LinearSettings
from model.softmax_config import SoftmaxSettings
from model.sparse_linear_config import SparseLinearSettings

MixerSettings = Annotated[
    SoftmaxSettings | LinearSettings | SparseLinearSettings | ConvSettings,
    Field(discriminator="kind"),
]


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
