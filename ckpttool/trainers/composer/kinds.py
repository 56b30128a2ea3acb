"""Questions about saves: whether one is a folder, and which files are newer than a step."""

from __future__ import annotations

import re

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.trainers.composer import FILE, batch_in


def is_folder(checkpoint: Checkpoint) -> bool:
    """Return whether a save is a folder."""
    return any("/" in shard.path for shard in checkpoint.shards) or not checkpoint.shards


def newer_files(inventory: Inventory, step: int | None) -> tuple[str, ...]:
    """Return the files whose names count more batches than a step, because of which Composer refuses to train.

    Source:
        `ensure_folder_has_no_conflicting_files` of mosaicml 0.32.1, which compares names and overlooks folders; runs.
    """
    names = (name for save in inventory.checkpoints for name in (save.name, *save.aliases) if re.fullmatch(FILE, name))
    return tuple(sorted(name for name in names if (batch_in(name) or 0) > (step or 0)))
