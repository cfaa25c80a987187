"""Prepares a data set: text in, packed token shards and a tokenizer out.

    python -m data.prepare data=files 'data.files=mytext/*.jsonl' tokenizer.vocab_size=8192

Steps: find out whether it was prepared before; copy the text to a temporary spool; choose the
validation documents; train or load the tokenizer; encode; write index.json; rename the folder.

The folder `<root>/<name>-<key>` is named after everything that determines its contents, so other
settings or changed files give another folder. Everything is written under a temporary name in
`root` and renamed when it is complete: a killed run leaves no data set. The same command continues
it: the copied text, the tokenizer and all complete shards are kept. Several processes may ask for
the same data set at once; one prepares it, the others wait.
"""

import gzip
import hashlib
import json
import sys
from functools import partial
from pathlib import Path

from conf.cli import hydra_main
from data.config import DataConfig, PrepareSettings, TokenizerConfig
from data.encode import unigram_entropy, write_split
from data.files import files_source
from data.folder import LOCK_FILE, building, write_atomically
from data.hub import hub_source
from data.index import (
    FORMAT_VERSION,
    INDEX_FILE,
    TOKENIZER_FILE,
    Index,
    ValidationIndex,
    contents_fingerprint,
    files_of,
    read_index,
    token_dtype,
    verify_checksums,
)
from data.report import summary
from data.sources import Source
from data.split import Assignment, assign
from data.spool import Spool, byte_bar, fill_spool
from data.stdlib import stdlib_source
from data.tokenizer import Tokenizer
from data.vocabulary import sample_blocks


def prepare(data: DataConfig, tokenizer: TokenizerConfig, *, progress: bool = True) -> Path:
    """Folder of the prepared data set, which is made first if there is none yet.

    With `data.dir` that folder is checked and used as it is, with its own tokenizer.
    Raises ValueError on anything wrong with the settings, the source or a prepared folder.
    """
    if data.dir is not None:
        folder = Path(data.dir)
        try:
            index = read_index(folder)
        except ValueError as error:
            raise ValueError(f"data.dir={data.dir}: {error}") from error
        _check_source(index, folder, data)
    else:
        source = _source(data)
        folder = Path(data.root) / f"{source.name}-{_key(source, data, tokenizer)}"
        if not folder.exists():
            with building(folder) as temporary:
                if temporary is not None:
                    for note in _build(temporary, source, data, tokenizer, progress).notes:
                        print(f"note: {note}", file=sys.stderr)
    _check_rows(read_index(folder), folder, data.seq_len)
    return folder


def _source(data: DataConfig) -> Source:
    if data.files is not None:
        return files_source(data.patterns, data.text_column)
    return stdlib_source() if data.hub is None else hub_source(data)


def _key(source: Source, data: DataConfig, tokenizer: TokenizerConfig) -> str:
    settings = tokenizer.model_dump()
    if tokenizer.path is not None:
        settings = {"fingerprint": Tokenizer.load(tokenizer.path).fingerprint}
    parts = [FORMAT_VERSION, source.description, data.validation_bytes, data.seed, settings]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _build(
    folder: Path, source: Source, data: DataConfig, config: TokenizerConfig, progress: bool
) -> Index:
    spool = fill_spool(folder, source, data.seed, progress)
    assignment = assign(spool.keys, spool.sizes, data.validation_bytes)
    tokenizer = _tokenizer(folder / TOKENIZER_FILE, spool, assignment, config)
    with byte_bar("encoding", int(spool.sizes.sum()), progress) as bar:
        texts = partial(spool.texts, assignment)
        train = write_split(folder, "train", texts(validation=False), tokenizer, bar)
        held_out = write_split(folder, "validation", texts(validation=True), tokenizer, bar)
    validation = ValidationIndex(
        **held_out.model_dump(),
        gzip_bytes=sum(len(gzip.compress(text.encode(), 9)) for text in texts(validation=True)),
        unigram_nats_per_token=unigram_entropy(folder, held_out, tokenizer),
    )
    index = Index(
        format_version=FORMAT_VERSION,
        dtype=token_dtype(tokenizer.size).name,
        vocab_size=tokenizer.size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        tokenizer_fingerprint=tokenizer.fingerprint,
        fingerprint=contents_fingerprint(tokenizer.fingerprint, train, validation),
        source=source.description,
        notes=assignment.notes,
        rejected=spool.record.rejected,
        longest=spool.record.longest,
        train=train,
        validation=validation,
    )
    write_atomically(folder / INDEX_FILE, index.model_dump_json(indent=2).encode())
    keep = files_of(index) | {LOCK_FILE}
    for entry in folder.iterdir():
        if entry.name not in keep:
            entry.unlink()
    return index


def _tokenizer(
    path: Path, spool: Spool, assignment: Assignment, config: TokenizerConfig
) -> Tokenizer:
    """Trains or loads the tokenizer and saves it, unless that was done before."""
    if path.exists():
        return Tokenizer.load(path)
    if config.path is not None:
        tokenizer = Tokenizer.load(config.path)
    else:
        total = int(spool.sizes[~assignment.validation].sum())
        texts = spool.texts(assignment, validation=False)
        tokenizer = Tokenizer.train(sample_blocks(texts, total, config.sample_bytes), config)
    write_atomically(path, tokenizer.model)
    return tokenizer


def _check_source(index: Index, folder: Path, data: DataConfig) -> None:
    if data.files is None and data.hub is None:
        return
    given = json.loads(json.dumps(_source(data).description))
    if given != index.source:
        raise ValueError(
            f"data.dir={folder} was prepared from {index.source}, but the source given now is "
            f"{given}. Type data.files=null data.hub=null to use the folder as it is, or "
            "data.dir=null to prepare the source."
        )


def _check_rows(index: Index, folder: Path, seq_len: int) -> None:
    if index.train.tokens <= seq_len:
        raise ValueError(
            f"{folder} has {index.train.tokens} training tokens, too few for one row of "
            f"data.seq_len={seq_len} and its last label. Give more text or type data.seq_len="
            f"{max(1, index.train.tokens - 1)} or less."
        )
    if index.validation.tokens < 2:
        raise ValueError(
            f"{folder} has no validation text: the corpus is too small. Give more text."
        )


@hydra_main("prepare", PrepareSettings)
def main(settings: PrepareSettings) -> None:
    """The command: prepares the data set, or checks every byte of one that is there already."""
    folder = prepare(settings.data, settings.tokenizer)
    index = read_index(folder)
    verify_checksums(folder, index)
    print(summary(index, folder))


if __name__ == "__main__":
    main()
