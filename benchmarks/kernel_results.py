"""The file kernels.json of `python -m benchmarks.kernels`, and reading it back."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from benchmarks.kernel_cases import OPS

Op = Literal[*OPS]
Direction = Literal["forward", "training"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Machine(BaseModel):
    gpu: str
    versions: dict[str, str]


class FirstStep(BaseModel):
    library: str
    op: Op
    seconds: Positive


class Time(BaseModel):
    op: Op
    rows: int = Field(gt=0)
    length: int = Field(gt=0)
    heads: int
    width: int
    packed: bool
    library: str
    direction: Direction
    milliseconds: list[Positive] = Field(min_length=1)


class Memory(BaseModel):
    op: Op
    library: str
    direction: Direction
    bytes: int


class Results(BaseModel):
    machine: Machine
    first_steps: list[FirstStep]
    times: list[Time]
    memory: list[Memory]
    notes: list[str]


def read(path: Path) -> dict:
    """What an earlier run wrote.

    Raises:
        ValueError: it is no such file; the first thing that is wrong in it.
        OSError: it cannot be read.
    """
    try:
        results = json.loads(path.read_text())
        Results.model_validate(results)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error
    except ValueError as error:
        raise ValueError(f"no JSON ({error})") from error
    return results
