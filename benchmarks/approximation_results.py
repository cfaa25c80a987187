"""What is in the file approximation.json of `python -m benchmarks.approximation`."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from benchmarks.approximation_errors import IID, MAPS, MEAN
from benchmarks.saved import Count, CpuMachine

Map = Literal[MEAN, *MAPS, IID]
Scale = Annotated[float, Field(ge=1e-6, le=100)]


class Settings(BaseModel):
    """What all points share but for the quantity that is varied."""

    dim: Count
    length: Count
    scale: Scale
    random_features: Count


class Errors(BaseModel):
    """`approximation_errors.errors` says what they are; no map has come near the upper bounds."""

    outputs: float = Field(ge=0, le=1e6)
    weights: float = Field(ge=0, le=1 + 1e-6)


class Point(BaseModel):
    """Errors by map at one value of the varied quantity, and one seed."""

    sweep: Literal["features", "scale", "length"]
    features: Count
    scale: Scale
    length: Count
    seed: int = Field(ge=0, lt=2**63)
    errors: dict[Map, Errors] = Field(min_length=1)


class Results(BaseModel):
    machine: CpuMachine
    settings: Settings
    points: list[Point] = Field(min_length=1)
