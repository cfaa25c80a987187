"""What Lightning is told of the processes and of what each of them holds."""

import inspect

from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch.nn.parallel import DistributedDataParallel

from model.training.config import StrategySettings
from model.training.ranks import Place


def lightning_strategy(settings: StrategySettings) -> Strategy | str:
    """What `Trainer(strategy=...)` takes."""
    if settings.kind == "single":
        return "auto"
    # Buffers (random features, masks) are functions of the settings and the step, alike everywhere.
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return DDPStrategy(gradient_as_bucket_view=True, **{name: False})


class BraidEnvironment(ClusterEnvironment):
    """Tells Lightning the place that `place_in` found; processes exist already."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self._place.address

    @property
    def main_port(self) -> int:
        return self._place.port

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._place.world

    def set_world_size(self, size: int) -> None:
        assert size == self._place.world, (size, self._place)

    def global_rank(self) -> int:
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        assert rank == self._place.rank, (rank, self._place)

    def local_rank(self) -> int:
        return self._place.local_rank

    def node_rank(self) -> int:
        return self._place.node
