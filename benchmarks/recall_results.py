"""What is in the file recall.json of `python -m benchmarks.recall`."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from benchmarks.recall_models import MODELS, RESIZED
from benchmarks.saved import Count, CpuMachine

Model = Literal[*MODELS, *RESIZED]
Rate = Annotated[float, Field(ge=1e-6, le=1)]


class Settings(BaseModel):
    """What all trainings share: `recall_train.Setup` says what they are."""

    vocab_size: Count
    length: Count
    pairs: list[Count] = Field(min_length=1)
    batch: Count
    steps: Count
    test_rows: Count


class Score(BaseModel):
    """The share of questions answered right, in test rows of one kind."""

    length: Count
    pairs: Count
    accuracy: float = Field(ge=0, le=1)


class Training(BaseModel):
    """One model, trained and tested. `steps` are fewer than the settings' if it was perfect."""

    model: Model
    rate: Rate
    seed: int = Field(ge=0, lt=2**63)
    parameters: Count
    state_bytes: Count
    steps: Count
    seconds: float = Field(ge=0, le=1e9)
    scores: list[Score] = Field(min_length=1)


class Results(BaseModel):
    machine: CpuMachine
    settings: Settings
    trainings: list[Training] = Field(min_length=1)

    @model_validator(mode="after")
    def _trainings_are_of_the_settings(self):
        settings = self.settings
        most, longer = max(settings.pairs), 2 * settings.length
        kinds = [(settings.length, pairs) for pairs in settings.pairs]
        kinds += [(longer, most), (longer, 2 * most)]
        seen = set()
        for training in self.trainings:
            name = f"{training.model}, rate {training.rate:g}, seed {training.seed}"
            found = [(score.length, score.pairs) for score in training.scores]
            if found != kinds:
                raise ValueError(f"{name}: scores are of rows {found}, settings of {kinds}")
            if name in seen:
                raise ValueError(f"the training {name} is there twice")
            seen.add(name)
        return self
