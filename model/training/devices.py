"""How many processes a run trains in, checked against those that were started."""

from collections.abc import Sequence

import torch

from model.training.config import StrategySettings
from model.training.ranks import Place
from model.training.stages import Stage


def processes_per_node(strategy: StrategySettings, place: Place, device: torch.device) -> int:
    """Processes on each node; more than there are now are still to be started.

    Args:
        place: of this process; a world of 1 where no launcher started it.

    Raises:
        ValueError: the settings and what was started do not fit together; what to type.
    """
    started = place.world
    if strategy.kind == "single":
        if started > 1:
            raise ValueError(
                f"strategy=single is one process, but {place.launched_by} started {started}; type "
                "strategy=ddp, or start one"
            )
        if (strategy.devices, strategy.nodes) not in ((1, 1), ("auto", 1)):
            raise ValueError(
                f"strategy=single is one process on one device, not strategy.devices="
                f"{strategy.devices} strategy.nodes={strategy.nodes}; type strategy=ddp"
            )
        return 1
    visible = torch.cuda.device_count() if device.type == "cuda" else None
    if started == 1 and strategy.nodes > 1:
        raise ValueError(
            f"strategy.nodes={strategy.nodes}: processes on several nodes are started by srun, one "
            "per device, in a SLURM job; here is one process alone"
        )
    if started % strategy.nodes:
        raise ValueError(
            f"{place.launched_by} started {started} processes, which strategy.nodes="
            f"{strategy.nodes} cannot share equally"
        )
    devices = strategy.devices
    if devices == "auto":
        devices = started // strategy.nodes if started > 1 else visible or 1
    if started > 1 and started != devices * strategy.nodes:
        raise ValueError(
            f"strategy.nodes={strategy.nodes} strategy.devices={devices} are "
            f"{devices * strategy.nodes} processes, but {place.launched_by} started {started}; "
            "strategy.devices=auto takes as many as there are"
        )
    if visible is not None and devices > visible:
        raise ValueError(
            f"{devices} processes per node need a GPU each, and torch sees {visible}; type "
            f"strategy.devices={visible}, or let every task see all GPUs of its node"
        )
    return devices


def check_shared(stages: Sequence[Stage], world: int) -> None:
    """Raises ValueError if the rows of an optimizer step cannot be shared equally."""
    for number, stage in enumerate(stages):
        if stage.rows % world:
            where = f"of stage {number} " if len(stages) > 1 else ""
            lower, upper = (
                (stage.rows + part * world - stage.rows % world) * stage.seq_len for part in (0, 1)
            )
            raise ValueError(
                f"batch_tokens={stage.batch_tokens} {where}are {stage.rows} rows of "
                f"{stage.seq_len} tokens, which {world} processes cannot share equally; use "
                + " or ".join(str(tokens) for tokens in (lower, upper) if tokens)
            )
