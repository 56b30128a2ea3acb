"""The states of OLMo-core's data loaders: `data_loader` in each rank's file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.units import MAX_RANKS, Rank
from ckpttool.trainers.loader_states.files import loader_files
from ckpttool.trainers.olmo_core import RANK_STATE, STATES

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.storage.base import Storage


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> list[SavedLoader]:
    """Return the states of a save; each rank loads its own file."""
    del inventory
    places = []
    for shard in checkpoint.shards:
        match = re.fullmatch(f".*/{STATES}/{RANK_STATE}", shard.path)
        if match is not None and int(match["rank"]) < MAX_RANKS:
            places.append((shard.path, Rank(int(match["rank"]))))
    return loader_files(storage, places, "data_loader")
