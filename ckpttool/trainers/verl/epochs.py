"""The length of an epoch, according to the saves of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.common.saved_values import first_value
from ckpttool.trainers.loader_states.torchdata import batches_in

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.storage.base import Storage

_MOST_SAVES = 16
"""Maximum number of other saves whose loaders are read to find the length of an epoch."""


def batch_counts(
    storage: Storage, inventory: Inventory, checkpoint: Checkpoint, path_of: Callable[[Checkpoint], str | None]
) -> dict[int, int]:
    """Return the number of batches that each save had read in its epoch, by its step.

    Args:
        storage: The tree.
        inventory: The saves of the tree.
        checkpoint: The save that is read in any case.
        path_of: Returns the path of the state of one of a save's loaders; None if the save has no such state.
    """
    others = [save for save in inventory.checkpoints if save.name != checkpoint.name]
    saves = [(save.step, path_of(save)) for save in (*others[-_MOST_SAVES:], checkpoint)]
    known = [(step, path) for step, path in saves if step is not None and path is not None]
    counts = map_waiting(lambda path: batches_in(first_value(storage, [path])), [path for _, path in known])
    return {step: count for (step, _), count in zip(known, counts, strict=True) if count is not None}


def epoch_length(counts: Mapping[int, int]) -> int | None:
    """Return the number of batches per epoch; None if the saves do not determine it.

    Without the batches of its own epoch, each save's step is a whole number of epochs.

    Args:
        counts: Number of batches that each save had read in its epoch, by its step.
    """
    whole_epochs = [step - count for step, count in counts.items()]
    batches = math.gcd(*whole_epochs)
    least = max(counts.values(), default=0)
    if batches <= 0 or least <= 0 or min(whole_epochs) < 0:
        return None
    lengths = [batches // epochs for epochs in range(1, batches // least + 1) if batches % epochs == 0]
    return lengths[0] if len(lengths) == 1 else None


def fits_no_epoch(counts: Mapping[int, int]) -> bool:
    """Return whether no length of an epoch explains the counts of all saves.

    Args:
        counts: Number of batches that each save had read in its epoch, by its step.
    """
    whole_epochs = [step - count for step, count in counts.items()]
    batches = math.gcd(*whole_epochs)
    return min(whole_epochs, default=0) < 0 or 0 < batches < max(counts.values(), default=0)
