"""Number of ranks of a training run, from its config and from the files next to its checkpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.expectation import Evidence, WorldEvidence
from ckpttool.core.domain.units import Rank
from ckpttool.core.storage.base import Storage

if TYPE_CHECKING:
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.trainers.mindformers.train_config import TrainConfig

_STRATEGY = r"ckpt_strategy_rank_(?P<rank>[0-9]{1,9})\.(?:ckpt|json)"
"""Pattern for names of strategy files.

There is one file per rank, so the number of files is the world size.
"""

STRATEGY_FOLDER = "strategy"
"""Folder of the strategy files, next to the checkpoints."""


def world_evidence(output: Storage, config: RunConfig | None) -> Evidence:
    """Return the evidence from the config, then the evidence from the files.

    Args:
        output: The folder that contains the tree.
        config: The config of the run to resume.

    Raises:
        UsageError: The config belongs to a different trainer.
    """
    worlds = []
    weights_alone = False
    if config is not None:
        from ckpttool.trainers.mindformers.train_config import TRAINER, TrainConfig, with_trainer_defaults

        if config.trainer == TRAINER and not isinstance(config, TrainConfig):
            return Evidence()  # the PyNative trainer's: it has no number of ranks, and any number loads any save
        mine = with_trainer_defaults(config)
        weights_alone = mine.no_save_optim
        worlds += [] if mine.world_size is None else [_of_config(mine, mine.world_size)]
    strategies = strategy_world(output)
    if strategies is not None:
        source = f"there are strategy files of {strategies} ranks"
        worlds.append(WorldEvidence(world_size=strategies, source=source, declared=False))
    return Evidence(worlds=tuple(worlds), weights_alone=weights_alone)


def _of_config(config: TrainConfig, world: int) -> WorldEvidence:
    reslices = config.auto_trans_ckpt
    if config.data_parallel and not reslices:
        source = f"{world} devices start in data-parallel mode, each with its own file"
        return WorldEvidence(world_size=world, source=source, declared=False, confirms=True, at_least=True)
    return WorldEvidence(world_size=world, source=f"{config.path} says so", declared=not reslices, confirms=reslices)


def strategy_world(output: Storage) -> int | None:
    """Return the number of ranks, judged by the highest rank with a strategy file; None if there is no such file."""
    return max(strategy_files(output), default=-1) + 1 or None


def strategy_files(output: Storage) -> dict[Rank, str]:
    """Return the paths of the strategy files in an output folder; one path per rank, even if it has both forms."""
    try:
        names = sorted(entry.name for entry in output.entries(STRATEGY_FOLDER))
    except OSError:  # most trees have none, and an unreadable folder proves nothing
        return {}
    matches = ((re.fullmatch(_STRATEGY, name), name) for name in names)
    return {Rank(int(match["rank"])): f"{STRATEGY_FOLDER}/{name}" for match, name in matches if match}
