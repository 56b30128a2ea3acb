"""The state of SkyRL's single data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.loader_states.files import loader_files
from ckpttool.trainers.verl.epochs import batch_counts, epoch_length
from ckpttool.trainers.verl.loaders import at_epochs_end
from ckpttool.trainers.verl.skyrl import SFT
from ckpttool.trainers.verl.skyrl.effects import AT_EPOCHS_END, WITHOUT_STATE, is_filtered, loader_path

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.storage.base import Storage


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> list[SavedLoader]:
    """Return the state of the driver's loader, marked if a resume from it skips an epoch."""
    path = loader_path(checkpoint)
    saved = loader_files(storage, [(shard.path, None) for shard in checkpoint.shards if shard.path == path])
    if not saved or dict(checkpoint.facts).get(SFT) or is_filtered(storage, checkpoint):
        return saved
    length = epoch_length(batch_counts(storage, inventory, checkpoint, loader_path))
    return at_epochs_end(saved, length, AT_EPOCHS_END, WITHOUT_STATE)
