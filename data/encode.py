"""Turns the documents of one split into its files of token ids."""

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.index import Split, SplitIndex, token_dtype
from data.tokenizer import Tokenizer
from data.writer import SplitWriter

BATCH_CHARACTERS = 1 << 22
SHARD_TOKENS = 1 << 27


@dataclass(frozen=True)
class _Part:
    """A piece of a document that is encoded on its own (see `Tokenizer.encode`)."""

    text: str
    first: bool
    last: bool
    document_bytes: int
    """UTF-8 bytes of the whole document, in its last part; 0 in the others."""


def write_split(
    folder: Path, split: Split, texts: Iterable[str], tokenizer: Tokenizer, bar: tqdm
) -> SplitIndex:
    """Writes every text as BOS, its tokens, EOS, and moves `bar` by the bytes of text.

    Continues an interrupted call with the same arguments after its last complete shard. Threads
    share the encoding; the result does not depend on their number.
    """
    writer = SplitWriter(folder, split, tokenizer.size, SHARD_TOKENS)
    threads = os.cpu_count() if sys.platform == "darwin" else len(os.sched_getaffinity(0))
    text_bytes = 0
    texts = iter(texts)
    for text in itertools.islice(texts, writer.documents):  # written before an interruption
        text_bytes += len(text.encode())
        bar.update(len(text.encode()))
    for batch in _batches(texts, tokenizer):
        encoded = tokenizer.encode_parts([part.text for part in batch], threads)
        for part, ids in zip(batch, encoded, strict=True):
            before = [tokenizer.bos_id] if part.first else []
            after = [tokenizer.eos_id] if part.last else []
            writer.add([*before, *ids, *after], starts_document=part.first)
            text_bytes += part.document_bytes
            bar.update(part.document_bytes)
    return writer.close(text_bytes)


def unigram_entropy(folder: Path, split: SplitIndex, tokenizer: Tokenizer) -> float:
    """Entropy, in nats, of the distribution of the targets: all tokens but BOS."""
    counts = np.zeros(tokenizer.size, dtype=np.int64)
    for shard in split.shards:
        ids = np.fromfile(folder / shard.file, dtype=token_dtype(tokenizer.size))
        counts += np.bincount(ids, minlength=tokenizer.size)
    counts[tokenizer.bos_id] = 0
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())


def _batches(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[_Part]]:
    """Parts of documents in order, some megabytes at once."""
    batch: list[_Part] = []
    characters = 0
    for text in texts:
        size = len(text.encode())
        parts = tokenizer.parts(text)
        for number, part in enumerate(parts, start=1):
            last = number == len(parts)
            batch.append(_Part(part, number == 1, last, size if last else 0))
            characters += len(part)
            if characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch
