"""Runs with a limit in minutes."""

import pytest
import torch

from model.training.budget import fitting_tokens, training_speed
from tests.composing import composed, small_model


@pytest.mark.parametrize(
    ("minutes", "speed", "tokens"),
    [
        ("null", 1.0, 100_000),  # no limit
        ("1", 1e9, 100_000),  # all of them fit
        ("1e308", 1e9, 100_000),
        ("1", 100.0, 4096),  # 5,400 fit: one whole step
        ("1", 1000.0, 13 * 4096),  # 54,000 fit
        ("1", 0.1, 4096),  # never fewer than one step
    ],
)
def test_a_run_has_the_whole_steps_that_fit(minutes, speed, tokens):
    fixed = ("trainer.tokens=100000", "trainer.batch_tokens=4096")
    trainer = composed(*fixed, f"trainer.minutes={minutes}").trainer
    assert fitting_tokens(trainer, speed) == tokens


def test_measuring_leaves_the_model_as_it_is():
    settings = composed("trainer.batch_tokens=64", "trainer.precision=32-true")
    model = small_model("gla softmax")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    speed = training_speed(
        model, settings.optimizer, settings.trainer, 16, torch.device("cpu"), steps=2
    )
    assert speed > 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
