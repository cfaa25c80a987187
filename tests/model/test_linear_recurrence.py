"""Every linear mixer against its formulas, token by token in float64; every combination of them."""

import itertools
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from pydantic import ValidationError

from model.decays import DECAYS
from model.feature_maps import FEATURE_MAPS
from model.linear_config import LinearSettings
from model.mixers.linear import LinearMixer
from model.pattern import Depth
from model.sequence import SequenceInfo
from tests.composing import composed
from tests.model.family import LINEAR, documents, family_model
from tests.model.mixer_oracle import mixer_output

LENGTH = 75
OTHERS = (  # options that no preset has
    {"decay": "retnet_lm"},
    {"decay": "learned", "feature_map": "exp", "normalize": True},
    {"decay": "simple_gla", "decay_temperature": 4.0, "expand_v": 0.5},
    {"decay": "alibi", "feature_map": "squared_relu", "normalize": True, "qk_heads": 1},
    {"decay": "kda_bounded", "feature_map": "softmax", "normalize": True},
    {"decay": "gla", "write": "complement", "output_gate": "sigmoid", "output_norm": True},
    {"decay": "kda", "write": "delta", "qk_norm": True, "beta_max": 2, "rope_base": 100.0},
    {"decay": "hgrn2", "feature_map": "relu", "skip": True},
    {"feature_map": "favor", "normalize": True, "rope_base": 100.0, "decay": "mamba2"},
)


@torch.no_grad()
@pytest.mark.parametrize("name", LINEAR)
def test_every_preset_is_its_recurrence(name):
    is_its_recurrence(family_model(f"{name}*2").blocks[1].mixer)


@torch.no_grad()
@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_so_are_options_that_no_preset_has(options):
    is_its_recurrence(mixer_with(**options))


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_so_are_all_combinations_alone_packed_and_in_pieces(decay, feature_map):
    mixers = list(combinations(decay, feature_map))
    assert mixers
    for mixer in mixers:
        is_its_recurrence(mixer)
        is_the_same_packed_and_in_pieces(mixer)


def is_its_recurrence(mixer: LinearMixer) -> None:
    torch.manual_seed(1)
    for parameter in mixer.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape))  # away from where training starts
    x = torch.randn(1, LENGTH, 32)
    got = mixer(x, SequenceInfo.of(x[..., 0]))[0][0]
    wanted = mixer_output(mixer, x[0])
    assert (got - wanted).norm() < 1e-5 * wanted.norm(), mixer.settings


def is_the_same_packed_and_in_pieces(mixer: LinearMixer) -> None:
    x = torch.randn(1, 2 * LENGTH, 32)
    x[:, LENGTH:] = x[:, :LENGTH]
    segments = documents(2 * LENGTH, LENGTH)
    packed, _ = mixer(x, SequenceInfo.of(x[..., 0], segments))
    assert torch.allclose(packed[:, :LENGTH], packed[:, LENGTH:], atol=1e-4), mixer.settings
    state, last = None, ()
    for start, end in pairwise((0, 37, 38, 90, 2 * LENGTH)):
        at = slice(start, end)
        info = SequenceInfo.of(x[:, at, 0], segments[:, at], *last)
        piece, state = mixer(x[:, at], info, state, keep_state=True)
        last = segments[:, end - 1], info.positions[:, -1] + 1
        assert torch.allclose(piece, packed[:, at], atol=1e-4), mixer.settings


def combinations(decay: str, feature_map: str) -> Iterator[LinearMixer]:
    """One mixer for every way to write and to normalise that the settings allow."""
    for write, normalize, qk_norm, rope_base in itertools.product(
        ("additive", "complement", "timestep", "delta"), (True, False), (True, False), (None, 100.0)
    ):
        options = {
            "decay": decay, "feature_map": feature_map, "write": write, "normalize": normalize,
            "qk_norm": qk_norm, "rope_base": rope_base, "beta_max": 2 if write == "delta" else None,
        }  # fmt: skip
        try:
            yield mixer_with(**options)
        except ValidationError:
            continue


def mixer_with(**options) -> LinearMixer:
    """The preset `linear` with other options, in the second of three blocks."""
    plain = composed().model.mixers["linear"].model_dump()
    plain |= {"heads": 2, "conv_width": 4, "normalize": False, "feature_map": "identity"}
    settings = LinearSettings.model_validate(plain | options)
    torch.manual_seed(0)
    mixer = LinearMixer(settings, 32, 1e-6, Depth(1, 3))
    for module in mixer.modules():
        if hasattr(module, "init_weights"):
            with torch.no_grad():
                module.init_weights()
    return mixer
