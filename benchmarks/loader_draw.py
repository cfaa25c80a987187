"""Opens data sets in a fresh process, draws batches and prints what it cost, as JSON.

python -m benchmarks.loader_draw CONFIGURATION SEQ_LEN ROWS WORKERS SECONDS FOLDER OTHER_FOLDER

Prints seconds to the first batch, tokens per second and per CPU second after it, and the anonymous
memory (RssAnon in /proc: what is no page of a file) that opening and drawing added in the process
that reads rows, over what it had with everything imported.
"""

import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from data.config import LengthConfig
from data.index import read_index
from data.module import TrainSteps
from data.rows import RowStage, TrainRows
from data.sets import Prepared

BY_LENGTH = LengthConfig(bounds=[4096, 32768], weights=[1.0, 2.0, 4.0])


def anonymous_bytes() -> int:
    """Anonymous memory of this process that is resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Weighed(TrainSteps):
    """Adds to every batch the anonymous memory and the CPU seconds of the process that made it, and
    its number."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        number = worker.id if worker else 0
        for batch in super().__iter__():
            cost = [anonymous_bytes(), time.process_time(), number]
            yield batch | {"cost": torch.tensor(cost, dtype=torch.float64)}


def draw(
    configuration: str,
    seq_len: int,
    rows: int,
    workers: int,
    seconds: float,
    folders: Sequence[Path],
) -> dict[str, float]:
    """See the module's docstring; draws at least 4 batches, and 4 of every loader process.

    configuration: of benchmarks.loader_results.  rows: of `seq_len` tokens; in shorter ones a
    batch has as many tokens.
    """
    torch.set_num_threads(1)
    before = anonymous_bytes()
    started = time.perf_counter()
    train = _opened(configuration, seq_len, rows, folders)
    loader = torch.utils.data.DataLoader(
        Weighed(train, 0, 0, 1), batch_size=None, num_workers=workers
    )
    batches = iter(loader)
    most = next(batches)["cost"][0].item()
    opened = time.perf_counter()
    # The batches that workers made ahead are not counted.
    for batch in itertools.islice(batches, 2 * workers):
        most = max(most, batch["cost"][0].item())
    start, own, count = time.perf_counter(), time.process_time(), 0
    spent: dict[int, list[float]] = {}
    while count < 4 * max(1, workers) or time.perf_counter() - start < seconds:
        memory, cpu, number = next(batches)["cost"].tolist()
        most = max(most, memory)
        spent.setdefault(int(number), []).append(cpu)
        count += 1
    wall, own = time.perf_counter() - start, time.process_time() - own
    cpu = own / count
    if workers:  # from the first of its batches to the last, a process made all but the first
        made = sum(len(times) - 1 for times in spent.values())
        cpu += sum(times[-1] - times[0] for times in spent.values()) / made
    return {
        "first_batch_seconds": opened - started,
        "tokens_per_second": count * rows * seq_len / wall,
        "tokens_per_cpu_second": rows * seq_len / cpu,
        "anonymous_mb": max(0, most - before) / 1e6,
    }


def _opened(configuration: str, seq_len: int, rows: int, folders: Sequence[Path]) -> TrainRows:
    if configuration != "mixture":
        folders = folders[:1]
    names = ["web", "code"] if configuration == "mixture" else [""]
    sets = {
        name: Prepared(folder, read_index(folder))
        for name, folder in zip(names, folders, strict=True)
    }
    weights = dict(zip(names, [3.0, 1.0], strict=False))
    by_length = BY_LENGTH if configuration.startswith("by_length") else None
    stages = [RowStage(None, rows, seq_len)]
    if configuration == "stages":
        stages = [RowStage(10**6, 4 * rows, seq_len // 4), RowStage(1, rows, seq_len)]
    return TrainRows(sets, weights, by_length, stages, seed=0)


def main(arguments: list[str]) -> None:
    configuration, seq_len, rows, workers, seconds, *folders = arguments
    numbers = (int(seq_len), int(rows), int(workers), float(seconds))
    print(json.dumps(draw(configuration, *numbers, [Path(folder) for folder in folders])))


if __name__ == "__main__":
    main(sys.argv[1:])
