"""The saves that a running PyNative trainer expects to find, and removes itself.

Source: `check_checkpoints_dir_max_num` of MindFormers 2.1.0, and its runs. A run's list of saves begins empty and has
at most `save_max` saves and the one being written. If a save in the list is missing, the trainer logs `Error saving
checkpoint` at every later save and never removes a save again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.lineage import CLEARLY_NS
from ckpttool.core.domain.progress import newest_first
from ckpttool.trainers.mindformers.scalars import PLANNED_STEPS, by_pynative

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
    from ckpttool.core.domain.settings import RunConfig

_REMOVES = "may be removed by a running PyNative trainer, which stops removing saves if it is missing"
_WAYS_ON = "--config gives save_max, beyond which saves are free; after the last step all are free"


def owned(inventory: Inventory, config: RunConfig | None) -> Mapping[CheckpointKey, str]:
    """Return the saves that a running trainer may remove, with the reason why nothing else should remove them.

    Args:
        inventory: The complete tree.
        config: The config of the run that saves to this tree; None if unknown, so that the run may own any save.
    """
    orders = _orders([save for save in newest_first(inventory.checkpoints) if by_pynative(save)])
    if all(_has_ended(saves[0]) for saves in orders):
        return {}
    from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig

    if isinstance(config, PyNativeConfig):
        why = f"{_REMOVES} (save_max: {config.save_max})"
        return {save.key: why for saves in orders for save in saves[: max(config.save_max, 0) + 1]}
    return {save.key: f"{_REMOVES}; {_WAYS_ON}" for saves in orders for save in saves}


def _orders(saves: list[Checkpoint]) -> list[list[Checkpoint]]:
    """Return the possible orders in which the saves were made, newest first.

    Saves are ordered by progress, and also by time if the times contradict that. A run that was resumed from an older
    save may write saves with fewer samples than the existing saves.
    """
    if not saves:
        return []
    by_time = sorted(saves, key=lambda save: save.saved_ns or 0, reverse=True)
    is_rewound = (by_time[0].saved_ns or 0) - (saves[0].saved_ns or 0) > CLEARLY_NS
    return [saves, by_time] if is_rewound else [saves]


def _has_ended(newest: Checkpoint) -> bool:
    """Return whether a save is the last save of its run, because the trainer has run all planned steps."""
    planned = dict(newest.scalars.rest).get(PLANNED_STEPS)
    return bool(planned) and newest.step is not None and newest.step >= (planned or 0)
