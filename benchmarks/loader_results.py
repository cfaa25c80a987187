"""What is in the file loader.json of `python -m benchmarks.loader`."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from benchmarks.saved import Count, CpuMachine

CONFIGURATIONS = {
    "plain": "one data set",
    "mixture": "mixture of two, 3 : 1",
    "stages": "stages, rows 1/4 as long",
    "by_length_first": "by_length, first time",
    "by_length": "by_length, after that",
}
"""What is read, in the order in which it is measured."""

Configuration = Literal["plain", "mixture", "stages", "by_length_first", "by_length"]
Speed = Annotated[float, Field(gt=0, le=1e12)]


class Settings(BaseModel):
    """What all points share."""

    tokens: Count
    document_tokens: Count
    seq_len: Count
    rows: Count
    seconds: Count


class Point(BaseModel):
    """One process.  tokens_per_cpu_second: CPU time of it and its loader processes.
    anonymous_mb: of the largest of those that read rows.  load: processes that ran or waited
    before the command."""

    configuration: Configuration
    workers: int = Field(ge=0, le=64)
    first_batch_seconds: float = Field(gt=0, le=1e9)
    tokens_per_second: Speed
    tokens_per_cpu_second: Speed
    anonymous_mb: float = Field(ge=0, le=1e9)
    load: float = Field(ge=0, le=1e6)


class Results(BaseModel):
    machine: CpuMachine
    settings: Settings
    points: list[Point] = Field(min_length=1)
