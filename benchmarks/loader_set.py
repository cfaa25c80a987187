"""A data set of any size that takes hardly any disk: its shards are sparse files of zeros."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.folder import write_atomically
from data.index import (
    FORMAT_VERSION,
    INDEX_FILE,
    Index,
    Rejected,
    Shard,
    SplitIndex,
    ValidationIndex,
    contents_fingerprint,
)

SHARD_TOKENS = 1 << 30
_NOTHING = "0" * 64
_SPREAD = 1.2  # standard deviation of the logarithm of lengths
_CHUNK = 1 << 20


def write_sparse_set(folder: Path, tokens: int, document_tokens: int, seed: int = 0) -> Index:
    """Writes a folder as `data.prepare` does; all tokens are 0.

    document_tokens: mean of a document. Lengths are drawn from a log-normal distribution: half of
        the documents are shorter than half of the mean, one in 100 is longer than 8 times the mean.

    The starts of the documents are real, 8 bytes each. Checksums are not those of the files.
    """
    folder.mkdir(parents=True)
    train = _split(folder, "train", tokens, document_tokens, seed)
    held_out = _split(folder, "validation", 10 * document_tokens, document_tokens, seed)
    validation = ValidationIndex(**held_out.model_dump(), gzip_bytes=1, unigram_nats_per_token=1.0)
    tokenizer = b"none"
    (folder / "tokenizer.model").write_bytes(tokenizer)
    fingerprint = hashlib.sha256(tokenizer).hexdigest()[:16]
    index = Index(
        format_version=FORMAT_VERSION,
        dtype="uint16",
        vocab_size=32_768,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        tokenizer_fingerprint=fingerprint,
        fingerprint=contents_fingerprint(fingerprint, train, validation),
        source={"kind": "sparse"},
        notes=[],
        rejected=Rejected(counts={}, examples={}),
        longest=[],
        train=train,
        validation=validation,
    )
    write_atomically(folder / INDEX_FILE, index.model_dump_json().encode())
    return index


def _split(folder: Path, name: str, tokens: int, document_tokens: int, seed: int) -> SplitIndex:
    shards = []
    for number, first in enumerate(range(0, tokens, SHARD_TOKENS)):
        shard = Shard(
            file=f"{name}-{number:05d}.bin",
            tokens=min(SHARD_TOKENS, tokens - first),
            sha256=_NOTHING,
        )
        with (folder / shard.file).open("wb") as file:
            file.truncate(2 * shard.tokens)
        shards.append(shard)
    documents = -(-tokens // document_tokens)
    offsets_file = f"{name}-documents.npy"
    starts = np.lib.format.open_memmap(
        folder / offsets_file, mode="w+", dtype=np.int64, shape=(documents,)
    )
    # Twice, as the lengths must add up: once for their sum, and in proportion to it.
    total = sum(float(lengths.sum()) for lengths in _lengths(documents, seed))
    first, before = 0, 0.0
    for lengths in _lengths(documents, seed):
        until = before + np.cumsum(lengths)
        starts[first : first + len(lengths)] = (until - lengths) * (tokens / total)
        first, before = first + len(lengths), float(until[-1])
    starts.flush()
    return SplitIndex(
        tokens=tokens,
        documents=documents,
        bytes=4 * tokens,
        shards=shards,
        offsets_file=offsets_file,
        offsets_sha256=_NOTHING,
    )


def _lengths(documents: int, seed: int) -> Iterator[np.ndarray]:
    """Lengths of documents, in proportion."""
    for number, first in enumerate(range(0, documents, _CHUNK)):
        source = np.random.default_rng([seed, number])
        yield source.lognormal(0, _SPREAD, min(_CHUNK, documents - first))
