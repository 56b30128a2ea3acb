"""The saves that a running PyNative trainer removes itself, and must find.

Source: `check_checkpoints_dir_max_num` of MindFormers 2.1.0, and runs of it. The list of a run begins empty and has at
most `save_max` saves and the one being written. If a save in it is missing, the trainer logs `Error saving checkpoint`
at every later save and never removes one again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.progress import newest_first
from ckpttool.trainers.mindformers.scalars import PLANNED_STEPS, by_pynative

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
    from ckpttool.core.domain.settings import RunConfig

_REMOVES = "is for a running PyNative trainer to remove, which never removes one again if it is missing"


def owned(inventory: Inventory, config: RunConfig | None) -> Mapping[CheckpointKey, str]:
    """Return the saves that a running training may remove, with the reason against removing them.

    Args:
        inventory: The complete tree.
        config: Of the run that saves there; None: unknown, so that each save may be one of them.
    """
    saves = [save for save in newest_first(inventory.checkpoints) if by_pynative(save)]
    if not saves or _has_ended(saves[0]):
        return {}
    from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig

    if isinstance(config, PyNativeConfig):
        kept = max(config.save_max, 0) + 1
        return {save.key: f"{_REMOVES} (save_max: {config.save_max})" for save in saves[:kept]}
    return {save.key: f"{_REMOVES}; --config gives save_max, beyond which saves are free" for save in saves}


def _has_ended(newest: Checkpoint) -> bool:
    """Return whether a save is the last one of its run: the trainer has made as many steps as it had to."""
    planned = dict(newest.scalars.rest).get(PLANNED_STEPS)
    return bool(planned) and newest.step is not None and newest.step >= (planned or 0)
