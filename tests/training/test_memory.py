"""A run that cannot fit into memory is refused before anything is built."""

import pytest
import torch

from model.network import LanguageModel
from model.training import memory
from model.training.memory import check_memory
from model.training.stages import stages_of
from tests.composing import composed

CPU = torch.device("cpu")


def checked(*overrides: str) -> None:
    settings = composed(*overrides)
    with torch.device("meta"):
        model = LanguageModel(settings.model, 2048)
    check_memory(model, *stages_of(settings.trainer, settings.data.seq_len), CPU)


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["model.d_model=1048576", "model.ffn_dim=1048576"], "lower model.d_model"),
        (["trainer.batch_tokens=5.12e12", "trainer.tokens=5.12e12"], "trainer.micro_batch_rows="),
    ],
)
def test_what_no_machine_holds_is_refused(overrides, advice):
    with pytest.raises(ValueError, match=r"needs at least .* GB of memory.*has") as error:
        checked(*overrides)
    assert advice in str(error.value)


def test_the_least_is_three_numbers_per_parameter_and_the_stream(monkeypatch):
    with torch.device("meta"):
        parameters = LanguageModel(composed().model, 2048).num_parameters()
    least = 12 * parameters + 4 * 2048 * 128 * 3
    monkeypatch.setattr(memory, "_host_bytes", lambda: least)
    checked()
    monkeypatch.setattr(memory, "_host_bytes", lambda: least - 1)
    with pytest.raises(ValueError, match=r"4 rows of seq_len=512"):
        checked()
