"""What is in the file language.json of `python -m benchmarks.language`."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from benchmarks.language_models import MODELS
from benchmarks.saved import Count, CpuMachine


class Settings(BaseModel):
    """What all trainings share."""

    tokens: Count
    data: str = Field(description="fingerprint of the prepared data set, its tokenizer included")


class Training(BaseModel):
    """One finished run of train.py."""

    model: Literal[*MODELS]
    seed: int = Field(ge=0, lt=2**32)
    overrides: list[str] = Field(description="what the model alone typed")
    parameters: Count
    nats_per_token: Annotated[float, Field(gt=0, le=100)] = Field(description="held-out text")
    seconds: Annotated[float, Field(gt=0, le=1e9)]


class Results(BaseModel):
    machine: CpuMachine
    settings: Settings
    trainings: list[Training] = Field(min_length=1)
