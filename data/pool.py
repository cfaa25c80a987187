"""Work shared by processes: results come in the order of the tasks, whatever the processes' number.

Each process has a pipe of its own and at most two tasks: one that it works on and the next, so that
memory is bounded however many tasks there are. Tasks are dealt in turn, so they should be of about
equal size. Processes end when this one does, however it ends: their pipes close then.
"""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2


def in_order(
    work: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[Result]:
    """`map(work, tasks)`, shared by so many processes; 1: this one does it.

    work: can be pickled, as are tasks and results. Tasks must be small: fewer than 64 kB two of
    them, so that giving one never waits.

    Raises:
        ChildProcessError: a process died; the message says how.
    """
    if processes == 1:
        yield from map(work, tasks)
        return
    # spawn: a fork of a process with threads may hang, and keeps the pipes of the others open.
    context = multiprocessing.get_context("spawn")
    workers: list[tuple[Any, Connection]] = []
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, work), daemon=True)
            with _interrupts_held():  # the child inherits it from its first instruction on
                process.start()
            theirs.close()
            workers.append((process, ours))
        yield from _deal(workers, iter(tasks))
    finally:
        for process, pipe in workers:
            pipe.close()
            process.terminate()
        for process, _ in workers:
            process.join()


def _deal(workers: list[tuple[Any, Connection]], tasks: Iterator[Task]) -> Iterator[Result]:
    giving, taking = cycle(workers), cycle(workers)
    waiting = 0
    for task in tasks:
        _give(*next(giving), task)
        waiting += 1
        if waiting == _AHEAD * len(workers):
            yield _take(*next(taking))
            waiting -= 1
    for _ in range(waiting):
        yield _take(*next(taking))


def _give(process: Any, pipe: Connection, task: Task) -> None:
    try:
        pipe.send(task)
    except OSError as error:
        raise _died(process) from error


def _take(process: Any, pipe: Connection) -> Result:
    try:
        result = pipe.recv()
    except (EOFError, OSError) as error:
        raise _died(process) from error
    if isinstance(result, BaseException):
        raise result
    return result


def _died(process: Any) -> ChildProcessError:
    process.join(timeout=10)
    code = process.exitcode
    how = "was closed" if code is None else f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        how += ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
    return ChildProcessError(
        f"an encoding process {how}. The same command goes on from what is saved; fewer processes "
        "need less memory: data.processes=N"
    )


def _serve(pipe: Connection, work: Callable[[Task], Result]) -> None:
    with contextlib.suppress(EOFError, OSError):  # the parent is gone or wants no more
        while True:
            task = pipe.recv()
            try:
                result = work(task)
            except Exception as error:  # told by the parent, where the command can answer it
                result = error
            pipe.send(result)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal; this one answers it and ends the others.

    A child that is started in here never sees it: what is blocked stays so. Here it is only late.
    """
    # Started by the first process, it would unblock what is blocked.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
