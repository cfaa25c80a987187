"""The base of every typed configuration section, and the field types they share.

Defaults live in the YAML files beside this module and nowhere else, so that
`python train.py --cfg job` prints everything a run depends on.
"""

from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

SAVED = "saved"
"""Validation context of settings that a run was saved with."""


class Settings(BaseModel):
    """A section of the configuration: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    before: ClassVar[dict[str, Any]] = {}
    """What code did before it had a key: the meaning of a saved run that does not name it. No
    default: what is typed and what is in conf/ must name every key."""

    @model_validator(mode="before")
    @classmethod
    def _complete_saved(cls, values: Any, info: ValidationInfo) -> Any:
        is_saved = info.context == SAVED and isinstance(values, dict)
        return cls.before | values if is_saved else values


def whole_number(value: Any) -> Any:
    """Accepts 2e6 where a whole number is wanted; leaves everything else to the type check."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Count = Annotated[int, BeforeValidator(whole_number), Field(gt=0, le=2**63 - 1)]
"""A positive whole number of 64 bits, such as a number of tokens; 2e6 is accepted."""

CountOrZero = Annotated[int, BeforeValidator(whole_number), Field(ge=0, le=2**63 - 1)]
"""A whole number of 64 bits that may be 0."""

Text = Annotated[str, Field(min_length=1)]
"""A name, a path: anything but nothing."""

RowLength = Annotated[int, BeforeValidator(whole_number), Field(gt=0, le=2**31 - 1)]
"""A number of tokens inside a row: distances and positions fit into 32 bits."""

RowLengthOrZero = Annotated[int, BeforeValidator(whole_number), Field(ge=0, le=2**31 - 1)]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e12)]
"""A share beside others; 0: nothing."""

Fraction = Annotated[float, Field(ge=0, le=1)]
FractionBelow1 = Annotated[float, Field(ge=0, lt=1)]
"""The share that a running mean keeps: at 1 it would never see anything new."""
