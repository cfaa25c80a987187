"""What is in the file prepare.json of `python -m benchmarks.prepare`."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from benchmarks.saved import Count, CpuMachine

Seconds = Annotated[float, Field(gt=0, le=1e9)]
Speed = Annotated[float, Field(gt=0, le=1e12)]


class Settings(BaseModel):
    """The corpus and the vocabulary, shared by all measurements."""

    megabytes: Count
    longest: Count
    vocab_size: Count
    kind: Literal["sentencepiece", "hf_json"] = "sentencepiece"


class Point(BaseModel):
    """One preparation.  bare: bytes per second of the encoder alone on one core, measured before
    and after it.  cpu_seconds: of all its processes.  peak_bytes: of the largest process.
    load: processes that ran or waited before."""

    processes: Count
    bytes: Count
    tokens: Count
    bare: list[Speed] = Field(min_length=2, max_length=2)
    cpu_seconds: Seconds
    wall_seconds: Seconds
    peak_bytes: Count
    load: float = Field(ge=0, le=1e6)


class Unsplit(BaseModel):
    """Whether a document's tokens are those of an encoding in one piece."""

    bytes: Count
    equal: bool


class Results(BaseModel):
    machine: CpuMachine
    settings: Settings
    unsplit: Unsplit | None
    points: list[Point] = Field(min_length=1)
