"""The typed configuration of the network; defaults are in conf/model/ and conf/mixer/."""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from conf.settings import RowLength, RowLengthOrZero, Settings, whole_number

DecayName = Literal["none", "retnet", "learned", "gla", "mamba2", "kda", "kda_bounded"]
FeatureMapName = Literal["identity", "elu1", "relu", "silu"]

# Options that only some decays read; giving one to another decay is an error, not silence.
_DECAY_OPTIONS = {
    "decay_rank": ("gla", "kda", "kda_bounded"),
    "decay_temperature": ("gla",),
    "memory_length": ("gla", "learned", "mamba2", "kda", "kda_bounded"),
}
KDA_BOUND = 5.0  # kda_bounded: no log-decay is below -5
# Feature maps whose kernel phi(q).phi(k) is never negative, so that a denominator is allowed.
_NON_NEGATIVE_MAPS = ("elu1", "relu")


# Limits: what lies outside computes nothing, or overflows float32 somewhere later.
MAX_WIDTH = 2**20
Width = Annotated[int, BeforeValidator(whole_number), Field(gt=0, le=MAX_WIDTH)]
"""Side of a matrix or a number of heads; a square matrix of the largest takes 4 TiB."""

Taps = Annotated[int, BeforeValidator(whole_number), Field(ge=0, le=1024)]
"""Taps of a short convolution, each of which is one more pass over the row."""

RopeBase = Annotated[float, Field(ge=1, le=1e12)]
"""The fastest pair of channels turns by 1 radian per token, the others slower. Below 1 they would
turn faster, past any positions; from 1e12 on, the slowest turn by less than a row can show."""

Expansion = Annotated[float, Field(gt=0, le=MAX_WIDTH)]
"""A width as a multiple of d_model; the mixer checks the product."""

MemoryLength = Annotated[float, Field(ge=0.01, le=1e9)]
"""Tokens until a state has faded to 1/e: log-decays from -100, past which nothing is left after one
token, to -1e-9, which float32 sums still tell from none."""

Temperature = Annotated[float, Field(ge=0.01, le=1e4)]
"""With any memory length, gates then start within 1e6 of 0."""

NormEpsilon = Annotated[float, Field(ge=1e-12, le=1)]
"""Added to mean squares of about 1; where all is 0, gradients are multiplied by eps^-1/2."""

InitStd = Annotated[float, Field(ge=1e-6, le=100)]
"""Products of three such matrices neither vanish in float32 nor overflow it."""


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


class LinearSettings(Settings):
    """The linear-time mixer: S_t = S' + phi(k_t) u_t^T, S' = D_t S_{t-1}, y_t = phi(q_t)^T S_t.

    u_t is v_t (write: additive) or beta_t (v_t - S'^T phi(k_t)) (write: delta).
    """

    before: ClassVar = {"write": "additive", "beta_max": None, "qk_norm": False}

    kind: Literal["linear"]
    heads: Width
    expand_k: Expansion = Field(description="total key width as a multiple of d_model")
    expand_v: Expansion = Field(description="total value width as a multiple of d_model")
    write: Literal["additive", "delta"] = Field(
        description="additive: the value; delta: what the state holds for the key is moved towards "
        "the value by the fraction beta"
    )
    beta_max: Literal[1, 2] | None = Field(
        description="delta: beta = beta_max sigmoid(x W + b); 2 lets a write reflect the state "
        "(negative eigenvalues)"
    )
    qk_norm: bool = Field(description="L2 norm of queries and keys after the feature map")
    decay: DecayName
    decay_rank: Width | None = Field(
        description="rank of the gate projection; null: 16 for gla, the width of a value head for "
        "kda and kda_bounded"
    )
    decay_temperature: Temperature | None = Field(
        description="gla: log-decay = logsigmoid(gate) / temperature; null: 16"
    )
    memory_length: list[MemoryLength] | None = Field(
        description="learned decays: [shortest, longest] memory in tokens at the start of "
        "training, spread evenly in the logarithm over channels or heads; null: [16, 512]"
    )
    feature_map: FeatureMapName
    normalize: bool = Field(description="divide by the sum of the weights phi(q).phi(k)")
    output_gate: Literal["none", "swish", "sigmoid"]
    output_norm: bool = Field(description="RMSNorm of each head's output")
    conv_width: Taps = Field(description="taps of the short convolution; 0: none")
    rope_base: RopeBase | None = Field(description="base of the rotary angles; null: none")

    @model_validator(mode="after")
    def _options_make_sense(self):
        for option, decays in _DECAY_OPTIONS.items():
            value = getattr(self, option)
            if value is not None and self.decay not in decays:
                raise ValueError(
                    f"{option}={value} is not read by decay={self.decay}, only by "
                    f"decay={' or '.join(decays)}; leave {option}=null or choose another decay"
                )
        lengths = self.memory_length
        if lengths is not None and (len(lengths) != 2 or lengths[0] > lengths[1]):
            raise ValueError(
                f"memory_length={lengths}: give two numbers of tokens, the shorter first, "
                "such as [16,512]"
            )
        if self.decay == "kda_bounded" and lengths is not None and lengths[0] * KDA_BOUND <= 1:
            raise ValueError(
                f"memory_length={lengths} with decay=kda_bounded: its log-decays stay above "
                f"-{KDA_BOUND:g}, so that memories are longer than {1 / KDA_BOUND:g} tokens; give "
                "longer ones, or decay=kda"
            )
        if self.write == "delta":
            self._check_delta()
        elif self.beta_max is not None:
            raise ValueError(
                f"beta_max={self.beta_max} is not read by write=additive; leave beta_max=null, or "
                "use write=delta"
            )
        if self.normalize and self.feature_map not in _NON_NEGATIVE_MAPS:
            raise ValueError(
                f"normalize=true needs a feature map with a non-negative kernel, and "
                f"feature_map={self.feature_map} has a signed one, so that the denominator may "
                f"vanish; use feature_map={' or '.join(_NON_NEGATIVE_MAPS)}, or normalize=false"
            )
        if self.normalize and self.rope_base is not None:
            raise ValueError(
                f"normalize=true with rope_base={self.rope_base}: rotated features have a signed "
                "kernel, so that the denominator may vanish; use rope_base=null or normalize=false"
            )
        return self

    def _check_delta(self) -> None:
        if self.normalize:
            raise ValueError(
                "normalize=true with write=delta: the delta rule writes with signed weights, so "
                "that the denominator may vanish; use normalize=false, or write=additive"
            )
        if not self.qk_norm or self.beta_max is None:
            raise ValueError(
                f"write=delta with qk_norm={str(self.qk_norm).lower()}, "
                f"beta_max={'null' if self.beta_max is None else self.beta_max}: the state stays "
                "bounded where beta |phi(k)|^2 is at most 2; use qk_norm=true with beta_max=1 or 2"
            )


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
