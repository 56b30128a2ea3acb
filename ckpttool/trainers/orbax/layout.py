"""Orbax's layout: `30/default/`, a folder per step with a subfolder for each saved item."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.orbax import LAYOUT, RECORD, TRAINER, is_unfinished

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll


class OrbaxLayout(Untracked):
    """A layout with one folder per step, which Orbax renames when the save is complete."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its record; no store is read."""
        from ckpttool.trainers.orbax.scan import scan_saves

        return scan_saves(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Read the stores of arrays up to the place of each value."""
        from ckpttool.trainers.orbax.stores import followed

        return followed(storage, checkpoint)

    def is_unfinished(self, name: str) -> bool:
        """Return whether Orbax writes a save under this temporary name."""
        return is_unfinished(name)

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder.

        Refuse if the training script rated its saves, because Orbax then keeps the best.
        """
        if dict(checkpoint.facts).get("metrics"):
            return Refusal(why="is rated by metrics, and only its training knows which checkpoints are the best")
        return Members(paths=(checkpoint.name,), records=(f"{checkpoint.name}/{RECORD}",))

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return the record and the stores' manifests; each process reads its own part of the arrays' data files."""
        from ckpttool.core.domain.placement import ReadByAll
        from ckpttool.core.domain.shard import ShardRole

        manifests = tuple(shard.path for shard in checkpoint.shards if shard.role is ShardRole.INDEX)
        data = tuple(shard.path for shard in checkpoint.shards if shard.role is ShardRole.DATA)
        return ReadByAll(surely=(f"{checkpoint.name}/{RECORD}", *manifests), perhaps=data)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the step."""
        from ckpttool.trainers.orbax.resumes import settings

        return settings(inventory, checkpoint)
