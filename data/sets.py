"""The prepared data sets that a run reads: one, or the sources of a mixture."""

import difflib
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from data.config import DataConfig, TokenizerConfig, check_weights
from data.index import Index, files_of, read_index, verify_checksums
from data.tokenizer import given_tokenizer, to_type


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
        given = f"data.sources.{name}.path={source.path}"
        try:
            sets[name] = Prepared(Path(source.path), read_index(source.path))
        except ValueError as error:
            raise ValueError(f"{given}: {error}") from error
        check_preparation(given, sets[name].index, data, tokenizer)
        if sets[name].index.validation.tokens < 2:
            raise ValueError(f"{given} has no validation text. Prepare it with more text")
    _check_tokenizers(sets)
    _tell_same_contents(sets)
    if data.verify:
        for name, prepared in sets.items():
            try:
                verify(*prepared)
            except ValueError as error:
                raise ValueError(f"data.sources.{name}: {error}") from error
    return sets


def check_given(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Checks what these settings name, as far as that takes no text: prepared data sets, files.

    Raises:
        ValueError: as `prepared_sets`.
    """
    if data.dir is None and data.sources is None:
        from data.build import folder_of, source_of

        folder_of(source_of(data), data, tokenizer)
    else:
        prepared_sets(data.model_copy(update={"verify": False}), tokenizer)


def verify(folder: Path, index: Index, progress: bool = True) -> None:
    """Reads every byte of a data set. Raises ValueError, naming the file, if one changed."""
    from data.spool import byte_bar

    paths = [folder / name for name in files_of(index)]
    total = sum(path.stat().st_size for path in paths if path.exists())
    with byte_bar("checking", total, progress) as bar:
        verify_checksums(folder, index, bar.update)


def check_preparation(
    given: str, index: Index, data: DataConfig, tokenizer: TokenizerConfig
) -> None:
    """Refuses settings of preparation that would change nothing about a data set that is used as it
    is, and that it was not prepared with.

    given: the setting that names it.
    """
    if tokenizer.path is not None:
        other = given_tokenizer(tokenizer).fingerprint
        if other != index.tokenizer_fingerprint:
            raise ValueError(
                f"tokenizer.path={tokenizer.path} ({other}): {given} was prepared with another "
                f"tokenizer ({index.tokenizer_fingerprint}) and keeps it. Leave the settings of "
                "the tokenizer out, or prepare the text again with that one"
            )
    repeats = index.duplicates
    if data.drop_duplicates and not (repeats and (repeats.dropped or not repeats.documents)):
        number = "them" if repeats is None else f"{repeats.documents:,} of them"
        raise ValueError(
            f"data.drop_duplicates=true: {given} was prepared with {number} and keeps them. Type "
            "data.drop_duplicates=false, or prepare the text again without duplicates"
        )


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


def _tell_same_contents(sets: Sets) -> None:
    names: dict[str, str] = {}
    for name, prepared in sets.items():
        other = names.setdefault(prepared.index.fingerprint, name)
        if other != name:
            print(
                f"warning: data.sources.{other} ({sets[other].folder}) and data.sources.{name} "
                f"({prepared.folder}) are the same data: it is read more often than the epochs of "
                "either say, and validated twice",
                file=sys.stderr,
            )


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
