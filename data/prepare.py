"""Prepares a data set: text in, packed token shards and a tokenizer out.

    python -m data.prepare data=files 'data.files=mytext/*.jsonl' tokenizer.vocab_size=8192

Steps: find out whether it was prepared before; copy the text to a temporary spool; choose the
validation documents, find duplicates, train or load the tokenizer; encode; write index.json; rename
the folder.

The folder `<root>/<name>-<key>` is named after everything that determines its contents, so other
settings or changed files give another folder. Everything is written under a temporary name in
`root` and renamed when it is complete: a killed run leaves no data set. The same command continues
it: the copied text, the tokenizer and all complete shards are kept. Several processes may ask for
the same data set at once; one prepares it, the others wait.

Many tasks, such as those of a SLURM array, share a preparation (data.parts says how):

    python -m data.prepare ... shard=$SLURM_ARRAY_TASK_ID/64     # the array, twice
    python -m data.prepare ... merge=true                        # then once
"""

import json
from pathlib import Path

from conf.cli import hydra_main
from data.build import encode_part, folder_of, source_of, tidy
from data.config import DataConfig, PrepareSettings, TokenizerConfig
from data.folder import building
from data.index import INDEX_FILE, Index, read_index
from data.merge import merge
from data.parts import merge_parts, parse_part, prepare_part
from data.plan import make_plan, part_folder
from data.report import summary
from data.sets import check_preparation, verify
from data.sources import WHOLE
from data.spool import fill_spool


def prepare(data: DataConfig, tokenizer: TokenizerConfig, *, progress: bool = True) -> Path:
    """Folder of the prepared data set, which is made first if there is none yet.

    With `data.dir` that folder is checked and used as it is, with its own tokenizer. With
    `data.verify` every byte of the folder is checked.
    Raises ValueError on anything wrong with the settings, the source or a prepared folder.
    """
    if data.dir is not None:
        folder = Path(data.dir)
        try:
            index = read_index(folder)
        except ValueError as error:
            raise ValueError(f"data.dir={data.dir}: {error}") from error
        _check_source(index, folder, data)
        check_preparation(f"data.dir={data.dir}", index, data, tokenizer)
    else:
        source = source_of(data)
        folder = folder_of(source, data, tokenizer)
        if not folder.exists():
            with building(folder) as temporary:
                if temporary is not None:
                    if not (temporary / INDEX_FILE).exists():
                        fill_spool(part_folder(temporary, 0), source, WHOLE, data.seed, progress)
                        make_plan(temporary, 1, source, data, tokenizer)
                        encode_part(temporary, WHOLE, data, progress)
                        merge(temporary, 1, source)
                    tidy(temporary)
    index = read_index(folder)
    _check_rows(index, folder, data.seq_len)
    if data.verify:
        verify(folder, index, progress)
    return folder


def _check_source(index: Index, folder: Path, data: DataConfig) -> None:
    if data.files is None and data.hub is None:
        return
    given = json.loads(json.dumps(source_of(data).description))
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
    if settings.shard is not None:
        part = parse_part(settings.shard)
        print(prepare_part(part, settings.data, settings.tokenizer))
        return
    if settings.merge:
        merge_parts(settings.data, settings.tokenizer)
    checked = settings.data.model_copy(update={"verify": True})
    folder = prepare(checked, settings.tokenizer)
    print(summary(read_index(folder), folder))


if __name__ == "__main__":
    main()
