"""Field types of the network's settings. What lies outside of their limits computes nothing, or
overflows float32 somewhere later.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field

from conf.settings import whole_number

MAX_WIDTH = 2**20
Width = Annotated[int, BeforeValidator(whole_number), Field(gt=0, le=MAX_WIDTH)]
"""Side of a matrix or a number of heads; a square matrix of the largest takes 4 TiB."""

Taps = Annotated[int, BeforeValidator(whole_number), Field(ge=0, le=1024)]
"""Taps of a short convolution, each of which is one more pass over the row."""

RopeBase = Annotated[float, Field(ge=1, le=1e12)]
"""The fastest pair of channels turns by 1 radian per token, the others slower. Below 1 they would
turn faster, past any positions; from 1e12 on, the slowest turn by less than a row can show."""

RopeFraction = Annotated[float, Field(gt=0, le=1)]
"""Of the channels of a head. To turn none is to have no rotary positions."""

RandomAnchorCount = Annotated[int, BeforeValidator(whole_number), Field(ge=0, le=1024)]
"""Keys that every query sees beside its window; more are no sparse attention any more."""

Expansion = Annotated[float, Field(gt=0, le=MAX_WIDTH)]
"""A width as a multiple of d_model; the mixer checks the product."""

MemoryLength = Annotated[float, Field(ge=0.01, le=1e9)]
"""Tokens until a state has faded to 1/e: log-decays from -100, past which nothing is left after one
token, to -1e-9, which float32 sums still tell from none."""

Temperature = Annotated[float, Field(ge=0.01, le=1e4)]
"""With any memory length, gates then start within 1e6 of 0."""

NormEpsilon = Annotated[float, Field(ge=1e-12, le=1)]
"""Added to mean squares of about 1; where all is 0, gradients are multiplied by eps^-1/2."""

InitStd = Annotated[float, Field(ge=1e-6, le=100)]
"""Products of three such matrices neither vanish in float32 nor overflow it."""
