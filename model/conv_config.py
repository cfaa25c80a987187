"""The settings of the gated short convolution."""

from typing import Annotated, Literal

from pydantic import Field

from conf.settings import Settings
from model.fields import Expansion, Taps


class ConvSettings(Settings):
    """A gated short convolution: no attention, for blocks between those that have some."""

    kind: Literal["conv"]
    conv_width: Annotated[Taps, Field(gt=0)] = Field(
        description="taps of the convolution, the token itself included"
    )
    expand: Expansion = Field(description="channels of the convolution, as a multiple of d_model")
