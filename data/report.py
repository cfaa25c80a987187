"""The closing summary of a preparation, from the index alone."""

import math
from pathlib import Path

from data.index import HISTOGRAM_FILE, Index


def summary(index: Index, folder: Path) -> str:
    """A few lines: sizes, baselines, rejected documents, longest documents, place."""
    lines = [
        f"{'split':<11}{'documents':>11}{'tokens':>15}{'bytes':>17}{'bytes/token':>13}",
    ]
    for name, split in (("train", index.train), ("validation", index.validation)):
        ratio = split.bytes / max(1, split.tokens)
        lines.append(
            f"{name:<11}{split.documents:>11,}{split.tokens:>15,}{split.bytes:>17,}{ratio:>13.2f}"
        )
    lines.append(
        f"tokenizer   {index.vocab_size} ids, {index.dtype}, {index.tokenizer_fingerprint}"
    )
    if index.validation.bytes:
        gzip, unigram = baselines(index)
        lines.append(f"baselines   validation bits/byte: gzip -9 {gzip:.3f}, unigram {unigram:.3f}")
    longest = ", ".join(f"{item.name} ({item.bytes:,} bytes)" for item in index.longest)
    lines.append(f"longest     {longest}")
    for reason, count in index.rejected.counts.items():
        names = _named(index.rejected.examples[reason], count)
        lines.append(f"left out    {count} {reason}: {names}")
    if index.duplicates is not None and index.duplicates.documents:
        found = index.duplicates
        what = "dropped" if found.dropped else "kept; data.drop_duplicates=true leaves them out"
        lines.append(
            f"duplicates  {found.documents:,} documents, {found.bytes:,} bytes, {what}: "
            + _named(found.examples, found.documents)
        )
    lines += [f"note        {note}" for note in index.notes]
    if (folder / HISTOGRAM_FILE).exists():
        lines.append(f"lengths     {folder / HISTOGRAM_FILE}")
    lines.append(f"written to  {folder} (fingerprint {index.fingerprint})")
    return "\n".join(lines)


def _named(examples: list[str], count: int) -> str:
    return ", ".join(examples[:5]) + (", ..." if count > 5 else "")


def baselines(index: Index) -> tuple[float, float]:
    """Bits per byte of the validation text under gzip -9 and under its unigram token
    distribution."""
    split = index.validation
    targets = split.tokens - split.documents
    unigram = split.unigram_nats_per_token * targets / math.log(2) / split.bytes
    return 8 * split.gzip_bytes / split.bytes, unigram
