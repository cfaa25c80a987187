"""Which settings may differ when a run is continued."""

from typing import Any

from conf.schema import TrainSettings
from model.pattern import used_names

# What may differ when a run is continued: nothing here changes what is learned. Name and root say
# where the run lives: its folder may be renamed and moved.
MAY_CHANGE = (
    "run.name",
    "run.root",
    "logger",
    "strategy",
    "data.root",
    "data.processes",
    "data.verify",
    "data.workers",
    "data.force",
    "trainer.device",
    "trainer.kernels",
    "trainer.loss_chunk",
    "trainer.validation_rows",
    "trainer.checkpoint_every",
    "trainer.keep_last",
    "trainer.keep_every",
    "trainer.sample_tokens",
    "trainer.plots",
)

# What may differ when a run is continued with data.force=true.
FORCEABLE = (
    "data.files",
    "data.hub",
    "data.hub_config",
    "data.hub_split",
    "data.text_column",
    "data.dir",
    "data.skip_bad_records",
    "data.drop_duplicates",
    "data.sources",
    "data.by_length",
    "data.validation_bytes",
    "data.seed",
    "tokenizer",
)


def may_change(settings: TrainSettings, saved: dict[str, Any] | None) -> list[str]:
    """`MAY_CHANGE`, what is forced, and the mixers that no layer of these settings or the run's own
    names."""
    models = [settings.model.model_dump()]
    if saved is not None:
        models.append(saved["model"])
    used = used_names(*(model["layers"] for model in models))
    names = {name for model in models for name in model["mixers"]}
    forced = FORCEABLE if settings.data.force else ()
    return [*MAY_CHANGE, *forced, *(f"model.mixers.{name}" for name in sorted(names - used))]
