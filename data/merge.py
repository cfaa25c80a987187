"""Makes one data set of encoded parts: their shards stay as they are, index.json is written.

Document starts are joined into one file per split, counts are added up. All parts must be there.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from data.folder import save_blocks, write_atomically
from data.histogram import draw_lengths
from data.index import (
    FORMAT_VERSION,
    HISTOGRAM_FILE,
    INDEX_FILE,
    Index,
    Split,
    SplitIndex,
    ValidationIndex,
    contents_fingerprint,
    file_sha256,
    token_dtype,
)
from data.plan import PLAN_FILE, Plan, part_folder, ranges_file, rows
from data.sources import Source
from data.spool import TEXT_FILE
from data.tokenizer import Tokenizer, tokenizer_path

_BLOCK = 1 << 20


class EncodedPart(BaseModel):
    """A part whose shards are complete; the file marks it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: SplitIndex
    validation: SplitIndex
    validation_gzip_bytes: int
    unsafe_cuts: int


def encoded_file(folder: Path, number: int) -> Path:
    """Where the `EncodedPart` is recorded."""
    return part_folder(folder, number) / "encoded.json"


def merge(folder: Path, parts: int, source: Source) -> Index:
    """Writes the index of encoded parts, the document starts of all of them and the histogram."""
    plan = Plan.model_validate_json((folder / PLAN_FILE).read_bytes())
    tokenizer = Tokenizer.load(tokenizer_path(folder))
    encoded = [
        EncodedPart.model_validate_json(encoded_file(folder, number).read_bytes())
        for number in range(parts)
    ]
    train = _joined(folder, "train", [part.train for part in encoded])
    held_out = _joined(folder, "validation", [part.validation for part in encoded])
    validation = ValidationIndex(
        **held_out.model_dump(),
        gzip_bytes=sum(part.validation_gzip_bytes for part in encoded),
        unigram_nats_per_token=unigram_entropy(folder, held_out, tokenizer),
    )
    notes = list(plan.notes)
    if unsafe := sum(part.unsafe_cuts for part in encoded):
        notes.append(
            f"Long documents were cut at {unsafe} places where the vocabulary allows no safe cut "
            "for 1 MiB: up to a few tokens there differ from an encoding in one piece."
        )
    index = Index(
        format_version=FORMAT_VERSION,
        dtype=token_dtype(tokenizer.size).name,
        vocab_size=tokenizer.size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        tokenizer_kind=tokenizer.kind,
        tokenizer_fingerprint=tokenizer.fingerprint,
        fingerprint=contents_fingerprint(tokenizer.fingerprint, train, validation),
        source=source.description,
        notes=notes,
        rejected=plan.rejected,
        longest=plan.longest,
        duplicates=plan.duplicates,
        train=train,
        validation=validation,
    )
    draw_lengths(folder, index, folder / HISTOGRAM_FILE)
    write_atomically(folder / INDEX_FILE, index.model_dump_json(indent=2).encode())
    return index


def gzip_bytes(folder: Path, number: int, split: Split) -> int:
    """Sum over the documents of a part's split of their size after gzip -9."""
    total = 0
    with (part_folder(folder, number) / TEXT_FILE).open("rb") as file:
        for begin, size in rows(np.load(ranges_file(folder, number, split), mmap_mode="r")):
            file.seek(begin)
            compressor = zlib.compressobj(9, zlib.DEFLATED, 31)  # 31: with gzip's header
            for place in range(0, size, _BLOCK):
                total += len(compressor.compress(file.read(min(_BLOCK, size - place))))
            total += len(compressor.flush())
    return total


def unigram_entropy(folder: Path, split: SplitIndex, tokenizer: Tokenizer) -> float:
    """Entropy, in nats, of the distribution of the targets: all tokens but BOS."""
    counts = np.zeros(tokenizer.size, dtype=np.int64)
    for shard in split.shards:
        ids = np.memmap(folder / shard.file, token_dtype(tokenizer.size), mode="r")
        for begin in range(0, len(ids), _BLOCK):
            counts += np.bincount(ids[begin : begin + _BLOCK], minlength=tokenizer.size)
    counts[tokenizer.bos_id] -= split.documents  # EOS may have the same id
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())


def _joined(folder: Path, split: Split, parts: list[SplitIndex]) -> SplitIndex:
    """One split of all parts; a single part is the split already."""
    if len(parts) == 1:
        return parts[0]
    path = folder / f"{split}-documents.npy"
    documents = sum(part.documents for part in parts)
    save_blocks(path, (documents,), np.dtype(np.int64), _starts(folder, parts))
    return SplitIndex(
        tokens=sum(part.tokens for part in parts),
        documents=documents,
        bytes=sum(part.bytes for part in parts),
        shards=[shard for part in parts for shard in part.shards],
        offsets_file=path.name,
        offsets_sha256=file_sha256(path),
    )


def _starts(folder: Path, parts: list[SplitIndex]) -> Iterator[np.ndarray]:
    """Starts of the documents of all parts in the joined stream."""
    before = 0
    for part in parts:
        own = np.load(folder / part.offsets_file, mmap_mode="r")
        for begin in range(0, len(own), _BLOCK):
            yield own[begin : begin + _BLOCK] + before
        before += part.tokens
