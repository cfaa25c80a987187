"""Every mixer preset as a small model: what the suites over the whole family share.

The presets are the files of conf/mixer/: a new one is covered as soon as it lies there.
"""

from functools import cache

import pytest
import torch

from model.network import LanguageModel
from model.sequence import SequenceInfo
from tests.composing import PRESETS, composed, presets_of, small_model

EVERY_MIXER = pytest.mark.parametrize("layers", [*PRESETS, "gla+window softmax retnet"])
LINEAR = presets_of("linear")


def family_model(layers: str, *overrides: str) -> LanguageModel:
    """A small model with short convolutions wherever a mixer can have them; always the same."""
    torch.manual_seed(0)
    return small_model(layers, *_with_convolutions(), *overrides)


@cache
def _with_convolutions() -> tuple[str, ...]:
    mixers = composed().model.mixers
    able = [name for name in PRESETS if "conv_width" in type(mixers[name]).model_fields]
    return tuple(f"model.mixers.{name}.conv_width=4" for name in able)


def tokens_of(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(seed))


def documents(length: int, *borders: int, rows: int = 1) -> torch.Tensor:
    """Document numbers [rows, length]; a new document starts at every border."""
    numbers = torch.bucketize(torch.arange(length), torch.tensor([*borders, length]), right=True)
    return numbers.expand(rows, -1)


def info_of(length: int, *borders: int) -> SequenceInfo:
    return SequenceInfo.of(torch.zeros(1, length), documents(length, *borders))
