"""The closing summary of a preparation, from the index alone."""

import math
from pathlib import Path

from data.index import Index


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
        names = ", ".join(index.rejected.examples[reason][:5])
        more = ", ..." if count > 5 else ""
        lines.append(f"left out    {count} {reason}: {names}{more}")
    lines += [f"note        {note}" for note in index.notes]
    lines.append(f"written to  {folder} (fingerprint {index.fingerprint})")
    return "\n".join(lines)


def baselines(index: Index) -> tuple[float, float]:
    """Bits per byte of the validation text under gzip -9 and under its unigram token
    distribution."""
    split = index.validation
    targets = split.tokens - split.documents
    unigram = split.unigram_nats_per_token * targets / math.log(2) / split.bytes
    return 8 * split.gzip_bytes / split.bytes, unigram
