"""The states of Lightning's training data loaders, and the epoch that Lightning counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.plain import plain_values, value_at
from ckpttool.trainers.common.saved_values import count_at
from ckpttool.trainers.lightning import META
from ckpttool.trainers.lightning.deepspeed_saves import is_with_deepspeed, record_file
from ckpttool.trainers.loader_states.files import MOST_LOADERS, in_epoch, loader_of

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.storage.base import Storage

_LOADERS = ("loops", "fit_loop", "state_dict", "combined_loader")


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> list[SavedLoader]:
    """Return the states of rank 0's loaders; empty if the loaders keep no state."""
    del inventory
    path = record_path(checkpoint)
    try:
        with storage.open(path) as source:
            values = plain_values(source)
    except (OSError, BrokenPickleError):  # reported by the check of the file
        return []
    states = value_at(values, *_LOADERS)
    if not isinstance(states, list):
        return []
    epoch = count_at(values, "epoch")
    saved = []
    for number, state in enumerate(states[:MOST_LOADERS]):
        loader = loader_of(state, path=path, key=f"{'.'.join(_LOADERS)}.{number}")
        # Of several loaders, Lightning begins a short one again within the epoch.
        if loader.state is not None and len(states) == 1:
            loader = replace(loader, state=in_epoch(loader.state, epoch))
        saved.append(loader)
    return saved


def record_path(checkpoint: Checkpoint) -> str:
    """Return the path of the file that contains Lightning's record."""
    if is_with_deepspeed(checkpoint):
        return record_file(checkpoint) or checkpoint.name
    is_folder = any("/" in shard.path for shard in checkpoint.shards)
    return f"{checkpoint.name}/{META}" if is_folder else checkpoint.name
