"""What is in the file crossover.json of `python -m benchmarks.crossover`."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from benchmarks.crossover_report import PARTS, PASSES
from benchmarks.presets import PRESETS
from benchmarks.saved import Count, CpuMachine, Milliseconds

Mixer = Literal[*PRESETS]


class Settings(BaseModel):
    width: Count
    mixers: list[Mixer] = Field(min_length=1)


class Point(BaseModel):
    """`crossover_measure.measure` says what it is."""

    mixer: Mixer
    head_dim: Count
    length: Count
    part: Literal[*PARTS]
    way: Literal[*PASSES] = Field(alias="pass")
    milliseconds: list[Milliseconds] = Field(min_length=1)
    bytes: Count


class Results(BaseModel):
    machine: CpuMachine
    settings: Settings
    loads: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    points: list[Point] = Field(min_length=1)
    notes: list[str]
