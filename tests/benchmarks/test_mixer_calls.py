"""The calls that are timed are those of the presets, whole and reduced to their core."""

import pytest
import torch

from benchmarks.mixer_calls import PUBLISHED_KEYS, build, decode_calls, row_calls
from benchmarks.presets import PRESETS, preset
from model.mixers.linear import LinearMixer
from model.mixers.softmax import SoftmaxMixer

WIDTH, HEAD_DIM, LENGTH = 32, 8, 11


def mixer_of(name: str, longest: int = 400):
    return build(name, WIDTH, HEAD_DIM, longest)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_calls_of_both_parts_and_all_passes(name):
    mixer = mixer_of(name)
    assert mixer.heads == WIDTH // HEAD_DIM
    calls = row_calls(mixer, LENGTH)
    steps, _ = decode_calls(mixer, 5)
    assert set(calls) | set(steps) == {
        (part, way) for part in ("whole", "core") for way in ("forward", "training", "decode")
    }
    for part in ("whole", "core"):
        (forward,) = calls[part, "forward"]()
        out, *gradients = calls[part, "training"]()
        torch.testing.assert_close(out, forward)
        assert all(gradient.isfinite().all() for gradient in gradients)
        (step,) = steps[part, "decode"]()
        assert step.shape == forward[:, :1].shape
        assert step.isfinite().all()
    assert calls["whole", "forward"]()[0].shape == (1, LENGTH, WIDTH)
    assert calls["core", "forward"]()[0].shape[:3] == (1, LENGTH, mixer.heads)
    of_weights = calls["whole", "training"]()[2:]
    assert [g.shape for g in of_weights] == [p.shape for p in mixer.parameters()]


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_carries_as_many_bytes_as_the_mixer_says(name):
    for context in (3, 300):
        mixer = mixer_of(name)
        assert decode_calls(mixer, context)[1] == mixer.state_bytes(context), context


def test_a_preset_keeps_its_own_settings_but_for_heads_and_published_widths():
    for name in PRESETS:
        settings, own = (x.model_dump() for x in (preset(name), mixer_settings(name)))
        changed = {key for key in settings if settings[key] != own[key]}
        allowed = {"heads", "kv_heads", "max_length"}
        allowed |= {"expand_k"} if name in PUBLISHED_KEYS else set()
        assert changed <= allowed, name
    assert mixer_of("taylor").features == 1 + 16 + 16 * 17 // 2
    assert mixer_of("mamba2").features == 128
    assert mixer_of("cosformer", 777).feature_map.max_length == 777


def mixer_settings(name: str):
    """The settings that a built mixer came from; those of attention have their own form."""
    mixer = build(name, WIDTH, HEAD_DIM, 400)
    if isinstance(mixer, LinearMixer):
        return mixer.settings
    if isinstance(mixer, SoftmaxMixer):
        assert mixer.mask.window == preset(name).window
        return preset(name, heads=mixer.heads, kv_heads=mixer.kv_heads)
    assert [mask.window for _, mask in mixer.groups] == [preset(name).window]
    return preset(name, heads=mixer.heads)


def test_widths_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"expand_k=0\.75 gives the width"):
        build("gated_deltanet", 24, 2, 400)
