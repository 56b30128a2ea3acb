"""The states of AutoModel's data loaders, one per data-parallel rank; the epoch is in `step_scheduler.pt`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import MAX_RANKS, Rank
from ckpttool.trainers.automodel import LOADERS
from ckpttool.trainers.loader_states.files import in_epoch, loader_files

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.storage.base import Storage

_FILE = rf".*/{LOADERS}/dataloader_dp_rank_([0-9]{{1,7}})\.pt"


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> list[SavedLoader]:
    """Return the states of a save.

    At an epoch's end, AutoModel resumes in the epoch that has no batches left, and continues with the next one.
    """
    del inventory
    places = []
    for shard in checkpoint.shards:
        match = re.fullmatch(_FILE, shard.path)
        if match is not None:
            places.append((shard.path, Rank(int(match[1])) if int(match[1]) < MAX_RANKS else None))
    epoch = dict(checkpoint.facts).get("epoch")
    saved = []
    for loader in loader_files(storage, places):
        state = None if loader.state is None else in_epoch(loader.state, epoch)
        saved.append(replace(loader, state=state))
    return saved
