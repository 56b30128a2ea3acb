"""States of data loaders that a script saved with DeepSpeed, as part of its `client_state`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import ShardRole
from ckpttool.trainers.loader_states.files import loaders_in

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.storage.base import Storage


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> list[SavedLoader]:
    """Return the states of known kinds in the first model file; each model file has the same client state."""
    del inventory
    path = next((shard.path for shard in checkpoint.shards if shard.role is ShardRole.MODEL), None)
    return [] if path is None else loaders_in(storage, path)
