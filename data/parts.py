"""One preparation shared by many tasks, such as those of a SLURM job array.

    sbatch --array=0-63 ... python -m data.prepare SETTINGS shard='$SLURM_ARRAY_TASK_ID/64'
    the same array again, when the first has ended
    python -m data.prepare SETTINGS merge=true

A task does what can be done about its part, and says what it did:

1. It copies its part of the text: neighbouring files, about as many bytes as in other parts.
2. If all parts are copied, the first task that finds them so makes the plan (duplicates, validation
   documents, tokenizer), which takes the whole corpus; others wait for it meanwhile. If parts lack,
   the task ends here: it never waits for tasks that may not have started.
3. It encodes its part.

A task that is repeated goes on from what is saved, and does nothing if its part is done; the same
task twice at once is done once. `merge` writes the index and renames the folder of the parts; while
parts lack it refuses to, naming them. The stream of tokens, the document starts, the tokenizer, the
validation split and all counts are those of a preparation by one process. Only the stream is cut
into shards at other places, so that `Index.fingerprint`, which covers the files, is another.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from data.build import encode_part, folder_of, source_of, tidy
from data.config import DataConfig, TokenizerConfig
from data.folder import alone, building, sharing, temporary_folder
from data.index import INDEX_FILE
from data.merge import encoded_file, merge
from data.plan import make_plan, part_folder
from data.sources import Part, files_of_part
from data.spool import fill_spool, is_complete

_NAMED = 10


def parse_part(text: str) -> Part:
    """The part that "3/64" means. Raises ValueError if there is no such part."""
    match = re.fullmatch(r"(\d{1,9})/0*([1-9]\d{0,8})", text)
    if match is None:
        raise ValueError(f"shard={text} is not a part and their number, such as shard=0/64.")
    part = Part(int(match[1]), int(match[2]))
    if part.number >= part.count:
        raise ValueError(
            f"shard={text}: the {part.count} parts are 0/{part.count} to "
            f"{part.count - 1}/{part.count}; an array of SLURM counts them with "
            f"--array=0-{part.count - 1}."
        )
    return part


def prepare_part(
    part: Part, data: DataConfig, tokenizer: TokenizerConfig, *, progress: bool = True
) -> str:
    """Does what can be done about a part; returns what that was, and what comes next.

    Raises ValueError on anything wrong with the settings or the source.
    """
    _check_settings(data)
    source = source_of(data)
    if source.files is not None:
        files_of_part([0] * source.files, part, source.title)
    folder = folder_of(source, data, tokenizer)
    done = f"{folder} is complete: nothing to do for part {part.number} of {part.count}"
    if folder.exists():
        return done
    with sharing(folder, part.count) as shared:
        if shared is None:
            return done
        own = part_folder(shared, part.number)
        with alone(shared / f"{own.name}.lock"):
            spool = fill_spool(own, source, part, data.seed, progress)
            missing = _missing(part.count, lambda number: is_complete(part_folder(shared, number)))
            if missing:
                return (
                    f"part {part.number} of {part.count}: {len(spool.sizes):,} documents are "
                    f"copied. They are encoded by the same command, given again when all parts are "
                    f"copied; not yet: {_listing(missing)}"
                )
            with alone(shared / "plan.lock"):
                make_plan(shared, part.count, source, data, tokenizer)
            encoded = encode_part(shared, part, data, progress)
    return (
        f"part {part.number} of {part.count} is encoded: {encoded.train.tokens:,} training and "
        f"{encoded.validation.tokens:,} validation tokens. When all are: merge=true with the same "
        "settings"
    )


def merge_parts(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """Folder of the data set, made of the parts that `prepare_part` encoded.

    Raises ValueError if there are none, or parts lack.
    """
    _check_settings(data)
    source = source_of(data)
    folder = folder_of(source, data, tokenizer)
    if folder.exists():
        return folder
    parts = _count(folder)
    with building(folder, parts) as shared:
        if shared is not None:
            if not (shared / INDEX_FILE).exists():
                missing = _missing(parts, lambda number: encoded_file(shared, number).exists())
                if missing:
                    raise ValueError(
                        f"merge=true: of {parts} parts these are not encoded: {_listing(missing)}. "
                        f"Repeat their commands, with shard={missing[0]}/{parts} and so on."
                    )
                merge(shared, parts, source)
            tidy(shared)
    return folder


def _check_settings(data: DataConfig) -> None:
    if data.dir is not None:
        raise ValueError(
            f"data.dir={data.dir} is prepared already: leave out shard and merge, or type "
            "data.dir=null and a source."
        )


def _count(folder: Path) -> int:
    """Number of the parts that are being made for `folder`."""
    paths = folder.parent.glob(temporary_folder(folder).name + ".of-*")
    # A task that was refused leaves a folder without parts.
    begun = [path for path in paths if any(is_complete(part) for part in path.glob("part-*"))]
    counts = sorted(int(path.name.rpartition("-")[2]) for path in begun)
    if not counts:
        raise ValueError(
            f"merge=true: no part of {folder} was prepared with these settings. Parts come first: "
            "shard=0/N to shard=N-1/N with the same settings."
        )
    if len(counts) > 1:
        names = " ".join(str(temporary_folder(folder, count)) for count in counts)
        raise ValueError(
            f"merge=true: there are parts of {' and of '.join(map(str, counts))}; one "
            f"number is allowed. Remove what is not wanted, one of: {names}"
        )
    return counts[0]


def _missing(count: int, is_there: Callable[[int], bool]) -> list[int]:
    return [number for number in range(count) if not is_there(number)]


def _listing(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return ", ".join(map(str, numbers[:_NAMED])) + more
