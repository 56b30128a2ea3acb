"""States of data loaders that a training loop saved in its own torch file, under any key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.loader_states.files import loaders_in

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.storage.base import Storage


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> list[SavedLoader]:
    """Return the states of known kinds in a save."""
    del inventory
    return loaders_in(storage, checkpoint.name)
