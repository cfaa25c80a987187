"""The typed configuration of training; defaults are in conf/optimizer, schedule and trainer."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from conf.settings import (
    Count,
    CountOrZero,
    Fraction,
    FractionBelow1,
    Positive,
    RowLength,
    Settings,
    Weight,
)
from model.fields import RopeBase


def _tokens_or_share(value: object) -> object:
    """Checks `N` tokens or `P%` of the run."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    share = re.fullmatch(r"(\d+(?:\.\d+)?)%", value) if isinstance(value, str) else None
    if isinstance(value, bool) or not (
        (isinstance(value, int) and 0 <= value < 2**63) or (share and float(share[1]) <= 100)
    ):
        given = "a number beyond 2^63" if isinstance(value, int) and value > 0 else repr(value)
        raise ValueError(f"{given} is neither a number of tokens nor a share such as 20%")
    return value


TokensOrShare = Annotated[int | str, BeforeValidator(_tokens_or_share)]
"""A number of tokens, or a share of the run's tokens such as `20%`."""


def tokens_of(value: int | str, total: int) -> int:
    """The number of tokens that a `TokensOrShare` means in a run of `total` tokens."""
    return round(float(value[:-1]) / 100 * total) if isinstance(value, str) else value


LearningRate = Annotated[float, Field(ge=1e-12, le=1000)]
"""An update moves a weight by about its learning rate: float32 rounds less away, and weights of
thousands predict nothing."""

Epsilon = Annotated[float, Field(ge=1e-30, le=1)]
"""Added to the root of a mean square gradient; float32 rounds much less to 0, and 0 / 0 is NaN."""

ClipNorm = Annotated[float, Field(ge=1e-6, allow_inf_nan=False)]
"""Smaller ones would leave gradients that float32 squares round to 0."""

WeightDecay = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _check_weight_decay(weight_decay: float, **rates: float) -> None:
    """Decoupled: a step multiplies weights by 1 - lr weight_decay, which must not change signs."""
    for name, rate in rates.items():
        if rate * weight_decay > 1:
            raise ValueError(
                f"{name}={rate:g} times weight_decay={weight_decay:g} is more than 1, so that "
                f"every step would turn weights round; allowed: weight_decay up to {1 / rate:g}"
            )


class MuonSettings(Settings):
    """Muon for the matrices of the blocks, AdamW for everything else."""

    kind: Literal["muon"]
    lr: LearningRate = Field(
        description="of Muon; scaled per matrix by 0.2 sqrt(max(rows, columns))"
    )
    momentum: FractionBelow1
    ns_steps: Count = Field(le=100, description="Newton-Schulz iterations; 5 suffice")
    adamw_lr: LearningRate = Field(description="of embeddings, head, gains, biases and decays")
    betas: list[FractionBelow1] = Field(min_length=2, max_length=2)
    eps: Epsilon
    weight_decay: WeightDecay = Field(description="of matrices only")

    @model_validator(mode="after")
    def _weights_shrink(self):
        _check_weight_decay(self.weight_decay, lr=self.lr, adamw_lr=self.adamw_lr)
        return self


class AdamWSettings(Settings):
    """AdamW for everything."""

    kind: Literal["adamw"]
    lr: LearningRate
    betas: list[FractionBelow1] = Field(min_length=2, max_length=2)
    eps: Epsilon
    weight_decay: WeightDecay = Field(description="of matrices only")

    @model_validator(mode="after")
    def _weights_shrink(self):
        _check_weight_decay(self.weight_decay, lr=self.lr)
        return self


OptimizerSettings = Annotated[MuonSettings | AdamWSettings, Field(discriminator="kind")]


class WSDSettings(Settings):
    """Warm-up, stable, decay: linear up, constant, then linear (or 1 - sqrt) down."""

    kind: Literal["wsd"]
    warmup: TokensOrShare
    decay: TokensOrShare = Field(description="length of the final decay")
    shape: Literal["linear", "sqrt"] = Field(description="sqrt: 1 - sqrt(progress)")
    final: Fraction = Field(description="last learning rate as a share of the highest")


class CosineSettings(Settings):
    """Linear warm-up, then half a cosine down to `final`."""

    kind: Literal["cosine"]
    warmup: TokensOrShare
    final: Fraction


ScheduleSettings = Annotated[WSDSettings | CosineSettings, Field(discriminator="kind")]


class StageSettings(Settings):
    """A part of a run; what is left out is the run's own setting. See `model.training.stages`."""

    until_tokens: Count | None = Field(
        None, description="tokens consumed at its end; the last stage ends with the run"
    )
    seq_len: RowLength | None = Field(None, description="tokens per row; else data.seq_len")
    batch_tokens: Count | None = Field(None, description="else trainer.batch_tokens")
    micro_batch_rows: Count | None = Field(
        None,
        description="else so many rows that they have no more tokens than those of "
        "trainer.micro_batch_rows",
    )
    weights: dict[str, Weight] | None = Field(
        None, description="of data.sources, by name; one that is not named is not read"
    )
    rope_base: RopeBase | None = Field(
        None, description="of softmax attention to the whole document; else of model.mixers"
    )


class TrainerSettings(Settings):
    """How long and in what portions to train, and what to keep."""

    before: ClassVar = {
        "minutes": None,
        "stages": None,
        "kernels": "auto",
        "sample_tokens": 300,
        "plots": True,
    }

    tokens: Count = Field(description="tokens to train on, rounded up to whole steps")
    minutes: Positive | None = Field(
        description="shortens the run to what this machine trains in about this time, measured "
        "before the first step; null: no limit"
    )
    stages: list[StageSettings] | None = Field(
        description="other rows, batches, mixtures and rotary bases from so many tokens on; null: "
        "one stage"
    )
    batch_tokens: Count = Field(description="tokens per optimizer step over all devices")
    micro_batch_rows: Count | None = Field(
        description="rows per forward pass on a device; null: all rows of the step at once"
    )
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["auto", "32-true", "bf16-mixed"] = Field(
        description="auto: bf16-mixed where its matrix products are measured faster"
    )
    compile: Literal["auto", "on", "off"] = Field(
        description="torch.compile of the blocks; auto: on for CUDA, off for CPU"
    )
    kernels: Literal["auto", "triton", "torch"] = Field(
        description="of recurrences, short convolutions and gated norms; auto: triton on GPUs"
    )
    clip_grad_norm: ClipNorm | None
    z_loss: Fraction
    loss_chunk: Count = Field(description="tokens whose logits exist at a time")
    max_skipped_steps: Count = Field(
        description="optimizer steps in a row with a non-finite gradient before the run stops"
    )
    validate_every: Count = Field(
        description="optimizer steps between validations; the last step is validated too"
    )
    validation_rows: Count = Field(description="rows per validation batch")
    validation_batches: Count | None = Field(
        description="batches of a validation during training; null: the whole split"
    )
    checkpoint_every: Count = Field(description="optimizer steps between checkpoints")
    keep_last: Count = Field(description="newest checkpoints to keep")
    keep_every: CountOrZero = Field(description="keep every n-th step's checkpoint too; 0: none")
    sample_tokens: CountOrZero = Field(description="length of the text written at the end; 0: none")
    plots: bool = Field(description="draw plots/ at the end")

    @model_validator(mode="after")
    def _batch_fits(self):
        if self.tokens < self.batch_tokens:
            raise ValueError(
                f"tokens={self.tokens} is less than one optimizer step of "
                f"batch_tokens={self.batch_tokens}: raise trainer.tokens or lower "
                "trainer.batch_tokens"
            )
        return self


class StrategySettings(Settings):
    """On which devices a run trains, and what each of them holds."""

    kind: Literal["single", "ddp"] = Field(
        description="single: one process. ddp: one process per device, each with the whole model"
    )
    devices: Count | Literal["auto"] = Field(
        description="devices per node; auto: all of them, or as many as there are processes"
    )
    nodes: Count = Field(description="machines; beyond 1 the processes are started by srun")
