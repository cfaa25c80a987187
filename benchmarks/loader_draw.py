"""Opens a data set in a fresh process, draws batches and prints what it cost, as JSON.

python -m benchmarks.loader_draw FOLDER SEQ_LEN ROWS WORKERS SECONDS [BOUND WEIGHT]

Prints seconds to the first batch, tokens per second after it, and the anonymous memory (RssAnon in
/proc: what is no page of a file) that opening and drawing added in the process that reads rows,
over what it had with everything imported.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import torch

from data.config import LengthConfig
from data.index import read_index
from data.module import TrainSteps
from data.rows import RowStage, TrainRows
from data.sets import Prepared


def anonymous_bytes() -> int:
    """Anonymous memory of this process that is resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Weighed(TrainSteps):
    """Adds to every batch the anonymous memory of the process that made it."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch | {"anonymous": torch.tensor(anonymous_bytes())}


def draw(
    folder: Path,
    seq_len: int,
    rows: int,
    workers: int,
    seconds: float,
    by_length: LengthConfig | None = None,
) -> dict[str, float]:
    """See the module's docstring; draws at least 4 batches."""
    torch.set_num_threads(1)
    before = anonymous_bytes()
    started = time.perf_counter()
    sets = {"": Prepared(folder, read_index(folder))}
    train = TrainRows(sets, {"": 1.0}, by_length, [RowStage(None, rows, seq_len)], seed=0)
    loader = torch.utils.data.DataLoader(
        Weighed(train, 0, 0, 1), batch_size=None, num_workers=workers
    )
    batches = iter(loader)
    first = next(batches)
    opened = time.perf_counter()
    most = int(first["anonymous"])
    # The batches that workers made ahead are not counted.
    for batch in itertools.islice(batches, 2 * workers):
        most = max(most, int(batch["anonymous"]))
    start, count = time.perf_counter(), 0
    while count < 4 or time.perf_counter() - start < seconds:
        most = max(most, int(next(batches)["anonymous"]))
        count += 1
    rate = count * rows * seq_len / (time.perf_counter() - start)
    return {
        "first_batch_seconds": opened - started,
        "tokens_per_second": rate,
        "anonymous_mb": max(0, most - before) / 1e6,
    }


def main(arguments: list[str]) -> None:
    folder, seq_len, rows, workers, seconds, *bucket = arguments
    by_length = None
    if bucket:
        by_length = LengthConfig(bounds=[int(bucket[0])], weights=[1.0, float(bucket[1])])
    found = draw(Path(folder), int(seq_len), int(rows), int(workers), float(seconds), by_length)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
