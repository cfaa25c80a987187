"""What is decided over the whole corpus before a part of it is encoded.

Which documents repeat others, which ones are held out for validation, and the tokenizer. All parts
have been copied by then; each gets a list of the byte ranges of its text that are the documents of
a split.
"""

import heapq
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from data.config import DataConfig, TokenizerConfig
from data.duplicates import repeated
from data.folder import save_array, write_atomically
from data.index import Duplicates, LongDocument, Rejected, Split
from data.sources import Source
from data.split import Assignment, assign
from data.spool import EXAMPLES, LONGEST, TEXT_FILE, Spool
from data.tokenizer import Tokenizer, given_tokenizer, tokenizer_path
from data.vocabulary import sample_blocks

PLAN_FILE = "plan.json"

_NAMED = 20
_STRETCH = 1 << 20
_SLOW_SAMPLE = 16_000_000
_THIN = 8
_THIN_STRETCH = 1 << 16


class Plan(BaseModel):
    """Decisions and counts for the index. The file marks a complete plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    notes: list[str]
    rejected: Rejected
    longest: list[LongDocument]
    duplicates: Duplicates


def part_folder(folder: Path, number: int) -> Path:
    """Where the text of a part is, and what belongs to it alone."""
    return folder / f"part-{number:05d}"


def ranges_file(folder: Path, number: int, split: Split) -> Path:
    """int64 [documents, 2]: begin and size of each document of a split in the text of a part."""
    return part_folder(folder, number) / f"{split}-ranges.npy"


def make_plan(
    folder: Path, parts: int, source: Source, data: DataConfig, config: TokenizerConfig
) -> Plan:
    """Decides everything and trains or loads the tokenizer, unless that was done before.

    Raises ValueError if there is no text, or the tokenizer does not suit it.
    """
    path = folder / PLAN_FILE
    if path.exists():
        return Plan.model_validate_json(path.read_bytes())
    spools = [Spool(part_folder(folder, number)) for number in range(parts)]
    sizes = np.concatenate([spool.sizes for spool in spools])
    rejected = _joined([spool.record.rejected for spool in spools])
    if not len(sizes):
        found = ", ".join(f"{count} {reason}" for reason, count in rejected.counts.items())
        raise ValueError(
            f"{source.title} holds no text ({found or 'no documents'}). "
            "Give a source with text in data.files or data.hub."
        )
    again, first = repeated(np.concatenate([spool.hashes for spool in spools]))
    duplicates = Duplicates(
        documents=len(again),
        bytes=int(sizes[again].sum()),
        dropped=data.drop_duplicates,
        examples=_examples(spools, again[:_NAMED].tolist(), first[:_NAMED].tolist()),
    )
    kept = np.ones(len(sizes), dtype=bool)
    if data.drop_duplicates:
        kept[again] = False
    keys = np.concatenate([spool.keys for spool in spools])[kept]
    assignment = assign(keys, sizes[kept], data.validation_bytes)
    _save_ranges(folder, spools, kept, assignment)
    notes = list(assignment.notes)
    if config.path is not None:
        tokenizer = given_tokenizer(config)
        tokenizer.save(folder)
        notes += tokenizer.notes
    elif not tokenizer_path(folder).exists():
        _trained(folder, parts, config).save(folder)
    longest = [item for spool in spools for item in spool.record.longest]
    plan = Plan(
        notes=notes,
        rejected=rejected,
        longest=heapq.nlargest(LONGEST, longest, key=lambda item: item.bytes),
        duplicates=duplicates,
    )
    write_atomically(path, plan.model_dump_json().encode())
    return plan


def sampled_texts(folder: Path, parts: int, wanted: int) -> Iterator[str]:
    """Blocks of about 4 kB of the training text, `wanted` bytes in all, spread evenly.

    Of a corpus of more than 8 times as much, only stretches of 64 KiB, spread evenly, are read.
    """
    ranges = [np.load(ranges_file(folder, n, "train"), mmap_mode="r") for n in range(parts)]
    total = sum(int(part[:, 1].sum()) for part in ranges)
    if total <= _THIN * wanted:
        return sample_blocks(_stretches(folder, ranges, _STRETCH, total, total), total, wanted)
    texts = _stretches(folder, ranges, _THIN_STRETCH, total, wanted)
    return sample_blocks(texts, wanted, wanted)


def _stretches(
    folder: Path, parts: list[np.ndarray], length: int, total: int, wanted: int
) -> Iterator[str]:
    """Stretches of at most `length` bytes of documents, about `wanted` bytes of `total`."""
    seen = taken = 0
    for number, ranges in enumerate(parts):
        with (part_folder(folder, number) / TEXT_FILE).open("rb") as file:
            for begin, size in rows(ranges):
                for place in range(begin, begin + size, length):
                    stretch = min(length, begin + size - place)
                    seen += stretch
                    if taken * total < seen * wanted:
                        taken += stretch
                        file.seek(place)
                        # A character that is cut by a stretch is no loss to the sample.
                        yield file.read(stretch).decode("utf-8", errors="ignore")


def rows(array: np.ndarray) -> Iterator[list[int]]:
    """The rows of a memory map, much faster than by iterating over it."""
    for begin in range(0, len(array), 1 << 16):
        yield from array[begin : begin + (1 << 16)].tolist()


def _trained(folder: Path, parts: int, config: TokenizerConfig) -> Tokenizer:
    sizes = [np.load(ranges_file(folder, n, "train"), mmap_mode="r")[:, 1] for n in range(parts)]
    sample = min(config.sample_bytes, sum(int(part.sum()) for part in sizes))
    if sample >= _SLOW_SAMPLE:  # sentencepiece does not say how far it is
        print(
            f"note: a vocabulary of {config.vocab_size:,} ids is trained on {sample / 1e6:,.0f} MB "
            "of text, which may take minutes (tokenizer.sample_bytes)",
            file=sys.stderr,
        )
    return Tokenizer.train(sampled_texts(folder, parts, config.sample_bytes), config)


def _joined(parts: list[Rejected]) -> Rejected:
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for part in parts:
        counts.update(part.counts)
        for reason, names in part.examples.items():
            examples.setdefault(reason, []).extend(names)
    return Rejected(
        counts=dict(counts),
        examples={reason: names[:EXAMPLES] for reason, names in examples.items()},
    )


def _examples(spools: list[Spool], again: list[int], first: list[int]) -> list[str]:
    wanted = {*again, *first}
    names: dict[int, str] = {}
    begin = 0
    for spool in spools:
        end = begin + len(spool.sizes)
        here = {number - begin for number in wanted if begin <= number < end}
        names |= {begin + number: name for number, name in spool.names(here).items()}
        begin = end
    return [f"{names[a]} = {names[b]}" for a, b in zip(again, first, strict=True)]


def _save_ranges(
    folder: Path, spools: list[Spool], kept: np.ndarray, assignment: Assignment
) -> None:
    """Writes the ranges of every part and split."""
    cut_document, cut = assignment.cut or (-1, 0)
    begin = chosen = 0  # of all documents, of those that are kept
    for number, spool in enumerate(spools):
        here = kept[begin : begin + len(spool.sizes)]
        begin += len(spool.sizes)
        ends = np.cumsum(spool.sizes)
        ranges = np.stack([ends - spool.sizes, spool.sizes], axis=1)[here]
        held_out = assignment.validation[chosen : chosen + len(ranges)]
        train, validation = ranges[~held_out], ranges[held_out]
        if chosen <= cut_document < chosen + len(ranges):
            place = cut_document - chosen
            start, size = map(int, ranges[place])
            border = _line_start(part_folder(folder, number) / TEXT_FILE, start, size, cut)
            train[place, 1] = border
            validation = np.array([[start + border, size - border]])
            train, validation = train[train[:, 1] > 0], validation[validation[:, 1] > 0]
        chosen += len(ranges)
        save_array(ranges_file(folder, number, "train"), train)
        save_array(ranges_file(folder, number, "validation"), validation)


def _line_start(path: Path, begin: int, size: int, cut: int) -> int:
    """The first start of a line in the first half of what follows `cut`, or else of a character."""
    with path.open("rb") as file:
        file.seek(begin + cut)
        place = cut
        while place < (cut + size) // 2:
            line = file.readline(min(_STRETCH, (cut + size) // 2 - place))
            place += len(line)
            if line.endswith(b"\n"):
                return place
        file.seek(begin + cut)
        following = file.read(min(4, size - cut))
    starts = (i for i, byte in enumerate(following) if byte & 0xC0 != 0x80)
    return cut + next(starts, len(following))
