"""The prepared data sets that a run reads: one, or the sources of a mixture."""

import difflib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from data.config import DataConfig, TokenizerConfig, check_weights
from data.index import Index, read_index, verify_checksums
from data.tokenizer import to_type


class Prepared(NamedTuple):
    """A prepared data set."""

    folder: Path
    index: Index


Sets = Mapping[str, Prepared]
"""The data sets by the names of their sources; the name of a data set that is alone is empty."""


def prepared_sets(data: DataConfig, tokenizer: TokenizerConfig) -> Sets:
    """The data sets of these settings; without `data.sources` it is prepared if there is none yet.

    Raises:
        ValueError: whatever is wrong with the source or a folder; or the sources of a mixture were
            prepared with different tokenizers.
    """
    if data.sources is None:
        from data.prepare import prepare  # what only serves rows needs nothing of it

        folder = prepare(data, tokenizer)
        return {"": Prepared(folder, read_index(folder))}
    sets = {}
    for name, source in data.sources.items():
        try:
            sets[name] = Prepared(Path(source.path), read_index(source.path))
            if data.verify:
                verify_checksums(*sets[name])
        except ValueError as error:
            raise ValueError(f"data.sources.{name}.path={source.path}: {error}") from error
        if sets[name].index.validation.tokens < 2:
            raise ValueError(
                f"data.sources.{name}.path={source.path} has no validation text. Prepare it with "
                "more text"
            )
    _check_tokenizers(sets)
    return sets


def weights_of(data: DataConfig, sets: Sets) -> dict[str, float | Fraction]:
    """The weight of every source in the run: as given, or the number of its training tokens."""
    if data.sources is None:
        return {"": 1.0}
    given = {name: source.weight for name, source in data.sources.items()}
    if None not in given.values():
        return given
    return {name: Fraction(prepared.index.train.tokens) for name, prepared in sets.items()}


def validation_sets(data: DataConfig, sets: Sets) -> list[tuple[str, float, float]]:
    """(name, weight, bytes of text per target) of the held-out text of every source."""
    weights = weights_of(data, sets)
    held_out = {name: prepared.index.validation for name, prepared in sets.items()}
    return [
        (name, float(weights[name]), split.bytes / (split.tokens - split.documents))
        for name, split in held_out.items()
    ]


def check_stage_weights(stages: Sequence[Mapping[str, float] | None], data: DataConfig) -> None:
    """Checks the weights that stages give to the sources of these settings.

    Raises:
        ValueError: there are no sources, one of that name is missing, or all weights are 0.
    """
    for number, weights in enumerate(stages):
        if weights is None:
            continue
        name = f"trainer.stages.{number}.weights"
        if data.sources is None:
            raise ValueError(f"{name}={weights}: there are no data.sources to weigh; leave it out")
        for source in weights:
            if source not in data.sources:
                close = difflib.get_close_matches(source, data.sources, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise ValueError(
                    f"{name}: there is no source {source!r}{hint}; data.sources has: "
                    + ", ".join(data.sources)
                )
        check_weights(name, list(weights.values()))


def first(sets: Sets) -> Prepared:
    """The first data set: all have the same tokenizer."""
    return next(iter(sets.values()))


def _check_tokenizers(sets: Sets) -> None:
    (name, one), *others = sets.items()
    for other, prepared in others:
        if prepared.index.tokenizer_fingerprint != one.index.tokenizer_fingerprint:
            raise ValueError(
                f"data.sources.{name} ({one.folder}) and data.sources.{other} ({prepared.folder}) "
                f"were prepared with different tokenizers, {_named(one.index)} and "
                f"{_named(prepared.index)}, so that the same ids mean other text. "
                "Prepare one of them again with the tokenizer of the other: python -m data.prepare "
                f"data.files=FILES {to_type(one.folder / one.index.tokenizer_file)}"
            )


def _named(index: Index) -> str:
    return f"{index.tokenizer_kind} {index.tokenizer_fingerprint}"
