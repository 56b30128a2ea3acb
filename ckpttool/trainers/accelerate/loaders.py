"""The states of Accelerate's stateful data loaders; the main process saves its own, without the epoch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.accelerate import LOADER
from ckpttool.trainers.loader_states.files import loader_files

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.storage.base import Storage


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> list[SavedLoader]:
    """Return the states of a save, in the order of their loaders."""
    del inventory
    paths = [shard.path for shard in checkpoint.shards if re.fullmatch(LOADER, shard.path.rpartition("/")[2])]
    return loader_files(storage, [(path, None) for path in paths])
