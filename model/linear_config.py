"""The settings of the linear mixer, and which of its options make sense together."""

from collections.abc import Iterable
from typing import ClassVar, Literal, get_args

from pydantic import Field, model_validator

from conf.settings import Count, CountOrZero, RowLength, Settings
from model.feature_maps import FEATURE_MAPS
from model.fields import Expansion, MemoryLength, RopeBase, Taps, Temperature, Width

DecayName = Literal[
    "none", "retnet", "retnet_lm", "lightning", "alibi", "learned",
    "gla", "simple_gla", "mamba2", "kda", "kda_bounded", "hgrn2",
]  # fmt: skip
FeatureMapName = Literal[*FEATURE_MAPS]

# Options that only some decays read; giving one to another decay is an error, not silence.
_DECAY_OPTIONS = {
    "decay_rank": ("gla", "kda", "kda_bounded"),
    "decay_temperature": ("gla", "simple_gla"),
    "memory_length": ("gla", "simple_gla", "learned", "mamba2", "kda", "kda_bounded"),
}
# And options that only some feature maps read.
MAP_OPTIONS = {option: (name,) for name, m in FEATURE_MAPS.items() for option in m.options}
KDA_BOUND = 5.0  # kda_bounded: no log-decay is below -5
_CHANNEL_DECAYS = ("gla", "kda", "kda_bounded", "hgrn2")


class LinearSettings(Settings):
    """The linear-time mixer: S_t = S' + phi(k_t) u_t^T, S' = D_t S_{t-1}, y_t = phi(q_t)^T S_t.

    u_t is v_t (write: additive) or beta_t (v_t - S'^T phi(k_t)) (write: delta).
    """

    before: ClassVar = {
        "write": "additive",
        "beta_max": None,
        "qk_norm": False,
        "qk_heads": None,
        "random_features": None,
        "redraw_every": None,
        "projection_seed": None,
        "max_length": None,
        "dpfp_nu": None,
        "skip": False,
        "norm_after_gate": False,
    }

    kind: Literal["linear"]
    heads: Width
    qk_heads: Width | None = Field(
        description="heads of queries and keys, each shared by heads / qk_heads value heads; null: "
        "heads"
    )
    expand_k: Expansion = Field(description="total key width as a multiple of d_model")
    expand_v: Expansion = Field(description="total value width as a multiple of d_model")
    write: Literal["additive", "complement", "timestep", "delta"] = Field(
        description="additive: the value; complement: the same, with keys 1 - exp(decay); "
        "timestep: the value times the step dt of decay=mamba2; delta: what the state holds for "
        "the key is moved towards the value by the fraction beta"
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
        description="gla and simple_gla: log-decay = logsigmoid(gate) / temperature; null: 16"
    )
    memory_length: list[MemoryLength] | None = Field(
        description="learned decays: [shortest, longest] memory in tokens at the start of "
        "training, spread evenly in the logarithm over channels or heads; null: [16, 512]"
    )
    feature_map: FeatureMapName
    random_features: Width | None = Field(
        description="favor: number of random features; null: 4 times the width of a key"
    )
    redraw_every: Count | None = Field(
        description="favor: optimizer steps after which the projection is drawn anew; null: never"
    )
    projection_seed: CountOrZero | None = Field(
        description="favor: which projections are drawn, with the block's number; null: 0"
    )
    max_length: RowLength | None = Field(
        description="cosformer: tokens of the longest row, M of its weights; null: 8192"
    )
    dpfp_nu: Width | None = Field(description="dpfp: number of shifts; null: 1")
    normalize: bool = Field(description="divide by the sum of the weights phi(q).phi(k)")
    output_gate: Literal["none", "swish", "sigmoid"]
    output_norm: bool = Field(description="RMSNorm of each head's output")
    norm_after_gate: bool = Field(description="that norm after the output gate instead of before")
    skip: bool = Field(description="add the value times a learned number per head to the output")
    conv_width: Taps = Field(description="taps of the short convolution; 0: none")
    rope_base: RopeBase | None = Field(description="base of the rotary angles; null: none")

    @model_validator(mode="after")
    def _options_make_sense(self):
        check_readers(self, "decay", _DECAY_OPTIONS)
        check_readers(self, "feature_map", MAP_OPTIONS)
        self._check_memory()
        self._check_write()
        self._check_feature_map()
        if self.qk_heads is not None and self.heads % self.qk_heads:
            raise ValueError(
                f"qk_heads={self.qk_heads} does not divide heads={self.heads}; allowed: "
                f"{', '.join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)}"
            )
        if self.norm_after_gate and (not self.output_norm or self.output_gate == "none"):
            raise ValueError(
                f"norm_after_gate=true with output_norm={_typed(self.output_norm)}, "
                f"output_gate={self.output_gate}: it orders a norm and a gate; give both, or "
                "norm_after_gate=false"
            )
        return self

    @property
    def unit_keys(self) -> bool:
        """Features have length 1: a factor of its own of each key cancels."""
        return self.qk_norm

    def _check_memory(self) -> None:
        lengths = self.memory_length
        if lengths is None:
            return
        if len(lengths) != 2 or lengths[0] > lengths[1]:
            raise ValueError(
                f"memory_length={lengths}: give two numbers of tokens, the shorter first, "
                "such as [16,512]"
            )
        if self.decay == "kda_bounded" and lengths[0] * KDA_BOUND <= 1:
            raise ValueError(
                f"memory_length={lengths} with decay=kda_bounded: its log-decays stay above "
                f"-{KDA_BOUND:g}, so that memories are longer than {1 / KDA_BOUND:g} tokens; give "
                "longer ones, or decay=kda"
            )

    def _check_write(self) -> None:
        if self.write == "delta":
            self._check_delta()
        elif self.beta_max is not None:
            raise ValueError(
                f"beta_max={self.beta_max} is not read by write={self.write}; leave beta_max=null, "
                "or use write=delta"
            )
        if self.write == "complement" and self.decay not in _CHANNEL_DECAYS:
            raise ValueError(
                f"write=complement with decay={self.decay}: keys are 1 - exp(decay), which needs a "
                f"decay per key channel; use decay={' or '.join(_CHANNEL_DECAYS)}, or "
                "write=additive"
            )
        if self.write == "timestep" and (self.decay != "mamba2" or self.normalize):
            raise ValueError(
                f"write=timestep with decay={self.decay}, normalize={_typed(self.normalize)}: "
                "values are multiplied by the step dt of decay=mamba2, and a denominator would sum "
                "weights without it; use decay=mamba2 with normalize=false, or write=additive"
            )

    def _check_delta(self) -> None:
        if self.normalize:
            raise ValueError(
                "normalize=true with write=delta: the delta rule writes with signed weights, so "
                "that the denominator may vanish; use normalize=false, or write=additive"
            )
        if not self.qk_norm or self.beta_max is None:
            raise ValueError(
                f"write=delta with qk_norm={_typed(self.qk_norm)}, "
                f"beta_max={'null' if self.beta_max is None else self.beta_max}: the state stays "
                "bounded where beta |phi(k)|^2 is at most 2; use qk_norm=true with beta_max=1 or 2"
            )

    def _check_feature_map(self) -> None:
        name, chosen = self.feature_map, FEATURE_MAPS[self.feature_map]
        if name == "cosformer" and self.rope_base is not None:
            raise ValueError(
                f"feature_map=cosformer with rope_base={self.rope_base}: it weighs by distance "
                "already, and turned features may be negative; use rope_base=null, or another map"
            )
        if self.write == "complement" and not chosen.elementary:
            raise ValueError(
                f"write=complement with feature_map={name}: keys are made from decays and are not "
                f"mapped, so that only a map of queries alone has a meaning; use "
                f"feature_map={either(n for n, m in FEATURE_MAPS.items() if m.elementary)}, or "
                "write=additive"
            )
        if self.normalize:
            self._check_denominator()
        elif chosen.ratio_only and not self.qk_norm:
            raise ValueError(
                f"feature_map={name} with normalize=false, qk_norm=false: its features are "
                "exponentials, kept finite by a factor per token that cancels in a ratio only; use "
                "normalize=true, or qk_norm=true"
            )

    def _check_denominator(self) -> None:
        """A denominator is a sum of weights phi(q).phi(k), decayed: it must not vanish."""
        name, chosen = self.feature_map, FEATURE_MAPS[self.feature_map]
        if chosen.sign == "signed":
            positive = either(n for n, m in FEATURE_MAPS.items() if m.sign != "signed")
            raise ValueError(
                "normalize=true needs a feature map with a non-negative kernel, and "
                f"feature_map={name} has a signed one, so that the denominator may vanish; use "
                f"feature_map={positive}, or normalize=false"
            )
        if chosen.sign == "kernel" and self.decay in _CHANNEL_DECAYS:
            others = either(n for n in get_args(DecayName) if n not in _CHANNEL_DECAYS)
            raise ValueError(
                f"normalize=true with feature_map={name}, decay={self.decay}: the kernel is a "
                "positive sum of signed features, which a decay per channel weighs differently, so "
                f"that the denominator may vanish; use decay={others}, or normalize=false"
            )
        if self.rope_base is not None and not chosen.of_dot_product:
            raise ValueError(
                f"normalize=true with rope_base={self.rope_base}: rotated features have a signed "
                "kernel, so that the denominator may vanish; use rope_base=null or normalize=false"
            )


def check_readers(settings: Settings, choice: str, options: dict[str, tuple[str, ...]]) -> None:
    """Refuses an option that the value of the field `choice` does not read; the others are null.

    options: of each option the values of `choice` that read it.
    """
    chosen = getattr(settings, choice)
    for option, readers in options.items():
        value = getattr(settings, option, None)
        if value is not None and chosen not in readers:
            raise ValueError(
                f"{option}={value} is not read by {choice}={chosen}, only by "
                f"{choice}={' or '.join(readers)}; leave {option}=null or choose another {choice}"
            )


def _typed(value: bool) -> str:
    return str(value).lower()


def either(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"
