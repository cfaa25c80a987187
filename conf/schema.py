"""The typed schema of the commands' whole configurations: one field per key of conf/*.yaml."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from conf.settings import Count, CountOrZero, Fraction, Settings, Text
from data.config import DataConfig, TokenizerConfig
from model.config import ModelSettings
from model.training.config import (
    OptimizerSettings,
    ScheduleSettings,
    StrategySettings,
    TrainerSettings,
)
from model.training.tracking import LoggerSettings


class RunSettings(Settings):
    """Which run this is, and where it lives."""

    name: Text = Field(description="folder of the run; the same name continues the same run")
    root: Text = Field(description="folder that holds the runs")
    init_from: Text | None = Field(
        description="start from the weights of another run (its name or a checkpoint file)"
    )


class TrainSettings(Settings):
    """`python train.py`"""

    before: ClassVar = {"strategy": {"kind": "single", "devices": 1, "nodes": 1}}

    run: RunSettings
    seed: CountOrZero
    model: ModelSettings
    data: DataConfig
    tokenizer: TokenizerConfig
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    trainer: TrainerSettings
    strategy: StrategySettings
    logger: LoggerSettings


class GenerateSettings(Settings):
    """`python generate.py run=NAME prompt=TEXT`"""

    run: Text = Field(description="name of the run")
    root: Text
    checkpoint: Text = Field(description="latest, best, or a file name in the run's checkpoints")
    prompt: str
    max_new_tokens: CountOrZero
    temperature: float = Field(
        ge=0, allow_inf_nan=False, description="0: always the most likely token"
    )
    top_k: CountOrZero | None = Field(description="0 or null: all tokens")
    top_p: Fraction | None = Field(description="0, 1 or null: all tokens")
    seed: CountOrZero
    device: Literal["auto", "cpu", "cuda"]


class EvalSettings(Settings):
    """`python eval.py run=NAME`"""

    run: Text
    root: Text
    checkpoint: Text
    batch_rows: Count
    device: Literal["auto", "cpu", "cuda"]


class InspectSettings(Settings):
    """`python -m data.inspect`"""

    run: Text | None = Field(description="name of the run; null: the settings below")
    root: Text
    step: Count = Field(description="optimizer step, from 1 as in metrics.jsonl")
    rank: CountOrZero
    world: Count = Field(description="number of ranks that share the rows of the step")
    row: CountOrZero | None = Field(description="of that rank; null: all")
    format: Literal["text", "json"] = Field(description="json: one object per row and line")
    color: Literal["auto", "always", "never"] = Field(description="auto: in a terminal")
    data: DataConfig
    tokenizer: TokenizerConfig
    trainer: TrainerSettings

    @model_validator(mode="after")
    def _colors_of_text(self) -> Self:
        if self.format == "json" and self.color != "auto":
            raise ValueError(
                f"color={self.color} and format=json are both given; JSON has no colours. Type "
                "color=auto or format=text."
            )
        return self
