"""The processes that train together: which one this is, and what rank 0 decides for all.

A process learns its place from the environment that `srun`, `torchrun` or `launch.py` made. Before
training, rank 0 alone prepares data, opens the run's folder and finds the checkpoint; the others
wait for what it found, for hours if need be, without a collective that would time out.
"""

import os
import pickle
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, cached_property
from typing import TYPE_CHECKING, TypeVar

from model.training.stop import Stop

if TYPE_CHECKING:
    import torch

Decided = TypeVar("Decided")

_PORTS = range(10_000, 32_768)
"""Below those that Linux gives to outgoing connections."""

_TO_MEET = timedelta(minutes=10)
_TO_DECIDE = timedelta(days=7)
_TO_END = timedelta(minutes=30)
_TO_FOLLOW = 5.0  # seconds


@dataclass(frozen=True)
class Place:
    """A process among those that train together.

    rank, world: over all nodes.  local_rank: on its node.  node: number of the node.
    address, port: where rank 0 is reached.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    node: int = 0
    address: str = "127.0.0.1"
    port: int = 0
    launched_by: str = "nothing"


def place_in(environment: Mapping[str, str]) -> Place:
    """The place that the variables of `torchrun` (or `launch.py`) or else of `srun` describe.

    A batch script of SLURM and a shell of `salloc` are no tasks: they are alone.

    Raises:
        ValueError: variables that do not fit together.
    """
    if "WORLD_SIZE" in environment and "RANK" in environment:
        missing = [k for k in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if k not in environment]
        if missing:
            raise ValueError(
                f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start the processes "
                "with srun or torchrun, or unset them"
            )
        return Place(
            int(environment["RANK"]),
            int(environment["WORLD_SIZE"]),
            int(environment["LOCAL_RANK"]),
            int(environment.get("GROUP_RANK", environment.get("NODE_RANK", "0"))),
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            "torchrun",
        )
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return Place()
    from lightning.fabric.plugins.environments import SLURMEnvironment

    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    return Place(
        int(environment["SLURM_PROCID"]),
        int(environment["SLURM_STEP_NUM_TASKS"]),
        int(environment["SLURM_LOCALID"]),
        int(environment["SLURM_NODEID"]),
        environment.get("MASTER_ADDR") or SLURMEnvironment.resolve_root_node_address(nodes),
        int(environment.get("MASTER_PORT") or port_of(int(environment["SLURM_JOB_ID"]))),
        "srun",
    )


def port_of(job: int) -> int:
    """A port for a SLURM job: jobs with neighbouring numbers, array tasks too, have different ones.

    Every task of an array has a SLURM_JOB_ID of its own.
    """
    return _PORTS[job % len(_PORTS)]


class RankZeroFailed(SystemExit):
    """Ends a process whose rank 0 has failed, which has said why."""


class Ranks:
    """This process and the others; connected on first use."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._decisions = self._meetings = self._groups = 0

    @property
    def is_first(self) -> bool:
        return self.place.rank == 0

    def decided(self, decide: Callable[[], Decided]) -> Decided:
        """What `decide` returns on rank 0, on all ranks; it can be pickled.

        Where it raises on rank 0, the others end with exit code 1 and no message of their own.
        """
        if self.place.world == 1:
            return decide()
        store = self._store
        key = f"decision {self._decisions}"
        self._decisions += 1
        if not self.is_first:
            try:
                store.wait([key], _TO_DECIDE)
                decided, value = pickle.loads(store.get(key))
                store.add(f"{key} known", 1)
            except RuntimeError:  # it is gone, and with it the store
                decided = False
            if not decided:
                raise RankZeroFailed(1)
            return value
        try:
            value = decide()
        except BaseException:
            store.set(key, pickle.dumps((False, None)))
            self._await_others(store, f"{key} known")
            raise
        store.set(key, pickle.dumps((True, value)))
        return value

    def meet(self, stop: Stop) -> None:
        """Waits until all ranks only remember signals, as `stop` does.

        Before, a signal ends a process at once, and a rank that remembered it would wait in a
        collective for one that is gone: here it waits for a moment, then ends too.
        """
        if self.place.world == 1:
            return
        self._meetings += 1
        key, until = f"meeting {self._meetings}", float("inf")
        store = self._store
        try:
            store.add(key, 1)
            while store.add(key, 0) < self.place.world:
                if stop.exit_code:
                    until = min(until, time.monotonic() + _TO_FOLLOW)
                if time.monotonic() > until:
                    raise SystemExit(stop.exit_code)
                time.sleep(0.02)
        except RuntimeError:  # rank 0, which holds the store, is gone
            raise SystemExit(stop.exit_code or 1) from None

    def connect(self, device: "torch.device") -> None:
        """Makes the process group, once; collectives of a GPU need its device chosen first."""
        import torch

        if self.place.world == 1 or torch.distributed.is_initialized():
            return
        if device.type == "cuda":
            torch.cuda.set_device(self.place.local_rank)
        self._groups += 1
        torch.distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=torch.distributed.PrefixStore(f"group {self._groups}", self._store),
            rank=self.place.rank,
            world_size=self.place.world,
        )

    def disconnect(self) -> None:
        """Ends the process group; a process that ends with its threads running may abort."""
        import torch

        if self.place.world > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def end_together(self) -> None:
        """Keeps the other ranks until rank 0 is done: where one ends with an exit code that is not
        0, launchers end the rest, and rank 0 may still be closing what it has open."""
        if self.place.world == 1:
            return
        # When the first process has ended, srun sends the others this: they are ending already.
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        self.disconnect()
        store = self._store
        with suppress(RuntimeError):  # rank 0, which holds the store, is gone
            if self.is_first:
                store.set("ended", b"")
                self._await_others(store, "ended known")
            else:
                store.wait(["ended"], _TO_END)
                store.add("ended known", 1)

    @cached_property
    def _store(self) -> "torch.distributed.TCPStore":
        from torch.distributed import TCPStore

        place = self.place
        try:
            return TCPStore(place.address, place.port, place.world, self.is_first, timeout=_TO_MEET)
        except (RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"rank {place.rank} of {place.world} does not reach rank 0 at {place.address}:"
                f"{place.port} ({reason}). Do all nodes see each other, and is the port free? "
                "MASTER_ADDR and MASTER_PORT choose others"
            ) from error

    def _await_others(self, store: "torch.distributed.TCPStore", key: str) -> None:
        """The store ends with this process, and the others have to read it first."""
        end = time.monotonic() + 10
        while store.add(key, 0) < self.place.world - 1 and time.monotonic() < end:
            time.sleep(0.05)


@cache
def ranks() -> Ranks:
    """Those of this process."""
    return Ranks(place_in(os.environ))
