"""What is in the file kernels.json of `python -m benchmarks.kernels`."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from benchmarks.kernel_calls import BRAID, FLA, SOFTMAX
from benchmarks.kernel_cases import OPS
from benchmarks.saved import Count, Milliseconds

Op = Literal[*OPS]
Library = Literal[BRAID, FLA, *SOFTMAX]
Direction = Literal["forward", "training"]


class Machine(BaseModel):
    gpu: str
    versions: dict[str, str]


class FirstStep(BaseModel):
    library: Library
    op: Op
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Time(BaseModel):
    op: Op
    rows: Count
    length: Count
    heads: Count
    width: Count
    packed: bool
    library: Library
    direction: Direction
    milliseconds: list[Milliseconds] = Field(min_length=1)


class Memory(BaseModel):
    op: Op
    library: Library
    direction: Direction
    bytes: int = Field(gt=-(2**63), lt=2**63)


class Results(BaseModel):
    """Times may be empty: every case may have failed or run out of time, and notes say so."""

    machine: Machine
    first_steps: list[FirstStep]
    times: list[Time]
    memory: list[Memory]
    notes: list[str]
