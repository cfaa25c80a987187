"""Shows what a training step reads: python -m data.inspect run=quickstart step=12

Every row as text, one colour per document, with a line at each border that names the document; the
tokens that predict nothing (whose label is masked) are reversed, or stand in ⟦ ⟧ without colours.

    python -m data.inspect run=NAME step=12 rank=1 world=4 row=0     of a run
    python -m data.inspect data=prepared data.dir=FOLDER step=1      of settings
    python -m data.inspect run=NAME step=12 format=json              one JSON object per row

Steps and epochs count from 1, as in metrics.jsonl; all else from 0. Keys of a JSON object: see
`record`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.text import Text

from conf.cli import CONF, hydra_main, override
from conf.schema import InspectSettings, TrainSettings
from data.binding import bound, tokenizer_of
from data.config import DataConfig
from data.index import Index
from data.packed import IGNORED
from data.rows import Row, TrainRows, row_stages
from data.sets import Sets, check_stage_weights, first, prepared_sets, weights_of
from data.tokenizer import Tokenizer
from model.training.budget import kept_tokens
from model.training.config import TrainerSettings
from model.training.differences import changed
from model.training.load import existing_run
from model.training.stages import stage_at, stages_of, total_steps

_COLORS = ("cyan", "yellow", "green", "magenta", "blue")
_MASKED = ("⟦", "⟧")
_DEFAULTS = {"data": "stdlib", "tokenizer": "sentencepiece_2k", "trainer": "small"}


class Piece(NamedTuple):
    """A stretch of a row's text."""

    text: str
    segment: int
    is_masked: bool


@hydra_main("inspect", InspectSettings, only_prints=True)
def main(settings: InspectSettings) -> None:
    if settings.rank >= settings.world:
        raise ValueError(
            f"rank={settings.rank}: with world={settings.world} there are ranks 0 to "
            f"{settings.world - 1}; give another rank, or the number of ranks as world"
        )
    data, trainer, sets, tokenizer, tokens = _opened(settings)
    stages = stages_of(trainer, data.seq_len, tokens)
    steps = total_steps(stages)
    if settings.step > steps:
        raise ValueError(f"step={settings.step}: the run has steps 1 to {steps}")
    count = stages[stage_at(stages, settings.step - 1)].rows
    if count % settings.world:
        fitting = [str(n) for n in range(1, count + 1) if not count % n]
        raise ValueError(
            f"world={settings.world}: that step has {count} rows, which are shared equally by "
            f"{', '.join(fitting)} ranks"
        )
    weights = weights_of(data, sets)
    read = TrainRows(sets, weights, data.by_length, row_stages(stages), data.seed)
    rows = read.rows(settings.step - 1, settings.rank, settings.world)
    if settings.row is not None and settings.row >= len(rows):
        raise ValueError(
            f"row={settings.row}: rank {settings.rank} of {settings.world} has rows 0 to "
            f"{len(rows) - 1} in that step; row=null shows all"
        )
    shown = [(n, row) for n, row in enumerate(rows) if settings.row in (None, n)]
    if settings.format == "json":
        place = {"step": settings.step, "rank": settings.rank, "world": settings.world}
        for number, row in shown:
            print(json.dumps(place | record(number, row, tokenizer)))
        return
    terminal = {"auto": None, "always": True, "never": False}[settings.color]
    console = Console(
        file=sys.stdout, force_terminal=terminal, highlight=False, soft_wrap=True, markup=False
    )
    for number, row in shown:
        console.print(title(number, len(rows), row))
        console.print(rendered(row, first(sets).index, tokenizer, console.is_terminal))


def record(number: int, row: Row, tokenizer: Tokenizer) -> dict[str, Any]:
    """A row as plain values.

    row: its number on the rank.  sample: its number in the run.  source, bucket: null where there
    is one data set, no data.by_length.  window: which one of its data set.  padding: how many
    tokens at the end are.  texts: of its documents, as far as the row holds them; a character that
    the row cuts is U+FFFD.  tokens, labels, segments: as the model gets them, see docs/data.md.
    """
    tokens, labels, segments = (
        row.tensors[name].tolist() for name in ("tokens", "labels", "segments")
    )
    padding = _padding(row)
    documents: list[list[int]] = []
    for token, segment in zip(tokens[: len(tokens) - padding], segments, strict=False):
        if segment == len(documents):
            documents.append([])
        documents[segment].append(token)
    return {
        "row": number,
        "sample": row.sample,
        "source": row.source or None,
        "bucket": row.bucket,
        "epoch": row.epoch + 1,
        "window": row.window,
        "padding": padding,
        "texts": [tokenizer.decode(ids) for ids in documents],
        "tokens": tokens,
        "labels": labels,
        "segments": segments,
    }


def title(number: int, count: int, row: Row) -> Text:
    """One line about a row."""
    labels, segments = row.tensors["labels"], row.tensors["segments"]
    # Padding is a segment of its own, but no document.
    padded = _padding(row)
    documents = int(segments[-1]) + 1 - (0 < padded < len(labels))
    parts = [
        f"row {number} of {count}",
        f"sample {row.sample:,}",
        *([f"source {row.source}"] if row.source else []),
        *([f"documents of {row.bucket} tokens"] if row.bucket else []),
        f"epoch {row.epoch + 1}",
        f"window {row.window:,}",
        f"{len(labels):,} tokens",
        f"{documents} document{'s' if documents > 1 else ''}",
        f"{int((labels != IGNORED).sum()):,} targets",
    ]
    return Text(", ".join(parts), style="bold")


def rendered(row: Row, index: Index, tokenizer: Tokenizer, colored: bool) -> Text:
    """The text of a row; without colours, masked tokens stand in brackets."""
    text = Text()
    last = None
    for piece in pieces(row, index, tokenizer):
        color = _COLORS[piece.segment % len(_COLORS)]
        if piece.segment != last:
            begins = "\n" if last is not None else ""
            text.append(f"{begins}── document {piece.segment} of the row ──\n", style="dim")
            last = piece.segment
        if colored:
            text.append(piece.text, style=f"{color} reverse" if piece.is_masked else color)
        else:
            opening, closing = _MASKED if piece.is_masked else ("", "")
            text.append(f"{opening}{piece.text}{closing}")
    return text.append("\n")


def pieces(row: Row, index: Index, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Text token by token; padding, and the bytes of one character, as one piece each."""
    # The id of padding may be that of the end: inside of a document it is the end.
    names = {index.pad_id: "⟨pad⟩"}
    for id in (index.bos_id, index.eos_id):
        roles = [role for role in ("bos", "eos") if getattr(index, f"{role}_id") == id]
        names[id] = f"⟨{'='.join(roles)}⟩"
    tokens, labels, segments = (
        row.tensors[name].tolist() for name in ("tokens", "labels", "segments")
    )
    padded = _padding(row)
    stream = tokenizer.stream()
    for at, (token, label, segment) in enumerate(zip(tokens, labels, segments, strict=True)):
        if at == len(tokens) - padded:
            yield Piece(f"⟨pad⟩ x {padded}", segment, True)
            return
        masked = label == IGNORED
        if token in names:
            yield from (Piece(_visible(t), segment, masked) for t in [stream.flush()] if t)
            yield Piece(names[token], segment, masked)
            continue
        text = stream.push(token)
        if at + 1 == len(tokens) or segments[at + 1] != segment:
            text += stream.flush()
        if text:
            yield Piece(_visible(text), segment, masked)


def _padding(row: Row) -> int:
    """How many tokens at the end are padding, which is a segment of its own without targets."""
    labels, segments = row.tensors["labels"], row.tensors["segments"]
    last = segments == segments[-1]
    is_padding = bool(segments[-1]) and not bool((labels[last] != IGNORED).any())
    return int(last.sum()) if is_padding else 0


def _visible(text: str) -> str:
    """Control characters, which would move the cursor, as their pictures (U+2400 ...)."""
    return "".join(
        chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else "␡" if c == "\x7f" else c
        for c in text
    )


def _opened(
    settings: InspectSettings,
) -> tuple[DataConfig, TrainerSettings, Sets, Tokenizer, int | None]:
    """Settings, data sets and tokenizer, and the length of a run that is limited in time."""
    if settings.run is None:
        stages = stages_of(settings.trainer, settings.data.seq_len)
        check_stage_weights([stage.weights for stage in stages], settings.data)
        sets = prepared_sets(settings.data, settings.tokenizer)
        folder, index = first(sets)
        tokenizer = Tokenizer.load(folder / index.tokenizer_file)
        return settings.data, settings.trainer, sets, tokenizer, None
    _check_nothing_typed(settings)
    folder = existing_run(settings.root, settings.run)
    config = folder.config(TrainSettings)
    saved = TrainSettings.model_validate(config)
    sets = bound(folder.path, config)
    tokens = kept_tokens(folder.path / "budget.json")
    return saved.data, saved.trainer, sets, tokenizer_of(folder.path), tokens


def _check_nothing_typed(settings: InspectSettings) -> None:
    """A run has settings of its own; others beside it would be passed over."""
    for section, choice in _DEFAULTS.items():
        file = Path(CONF) / section / f"{choice}.yaml"
        defaults = yaml.safe_load(file.read_text(encoding="utf-8"))
        given = getattr(settings, section).model_dump(mode="json")
        for key, _, value in changed(defaults, given):
            raise ValueError(
                f"{override(f'{section}.{key}', value)} with run={settings.run}: a run has its own "
                "settings; leave it out, or leave out run"
            )


if __name__ == "__main__":
    main()
