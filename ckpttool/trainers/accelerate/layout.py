"""Accelerate's layout: `checkpoints/checkpoint_i/` with automatic numbers, or any folder that a script names.

The tree is the folder around `checkpoints/`: Accelerate requires a number in the name of every entry in that folder, so
ckpttool's files must be elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.expectation import RankFiles
from ckpttool.core.records import SealPlace
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.accelerate import LAYOUT, TRAINER, folder_of
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.hf_saves.save_folder import is_unfinished, with_own_records
from ckpttool.trainers.listing import Listing

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll


class AccelerateLayout(Untracked):
    """A layout with one folder per save, shared by all ranks.

    Numbers in the folder names count saves, not steps.
    """

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT
    rank_files = RankFiles.UNCOUNTED

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its step from registered objects or from its schedule."""
        from ckpttool.trainers.accelerate.scan import scan_saves

        return scan_saves(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Compare the weights' index with their parts, and read the large records of slices."""
        return with_own_records(storage, checkpoint, folder_of(checkpoint.name, checkpoint.shards))

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is a temporary name that safetensors uses before it renames the file."""
        return is_unfinished(name)

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder, with its contents."""
        return Members(paths=(folder_of(checkpoint.name, checkpoint.shards),))

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return all files that belong to no rank.

        Each process loads all of them, and stops if one is missing.
        """
        from ckpttool.trainers.hf_saves.save_folder import read_by_all

        return read_by_all(folder_of(checkpoint.name, checkpoint.shards), checkpoint.shards)

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in the save's own folder."""
        return SealPlace.inside(
            folder_of(checkpoint.name, checkpoint.shards), layout=self.name, checkpoint=checkpoint.name
        )

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the save's folder and the number of the next save.

        Without that number, a resumed run numbers its saves from 0 again.
        """
        from ckpttool.trainers.accelerate.resumes import load

        return load(inventory, checkpoint)
