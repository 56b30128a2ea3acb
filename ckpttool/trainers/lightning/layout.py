"""Lightning's layout: `checkpoints/epoch=1-step=12.ckpt`, a file or a folder, often with `last.ckpt` next to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.records import SealPlace, own_path
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.lightning import LAYOUT, TRAINER, is_bare, is_last
from ckpttool.trainers.lightning.deepspeed_saves import is_with_deepspeed
from ckpttool.trainers.listing import Listing

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll


class LightningLayout(Untracked):
    """A layout with one file per save, or one folder if the save is sharded."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """Read the record of each save."""
        from ckpttool.trainers.lightning.scan import scan_saves

        return scan_saves(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Add the contents of a folder's large record.

        A save in one file needs nothing more.
        """
        if is_with_deepspeed(checkpoint) or not any("/" in shard.path for shard in checkpoint.shards):
            return checkpoint
        from ckpttool.trainers.torch_dcp.store import read_store_closely

        return read_store_closely(storage, checkpoint, checkpoint.name)

    def is_unfinished(self, name: str) -> bool:
        """Return False, because Lightning writes elsewhere and then moves or copies the file to its final name."""
        return False

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return the save's file, or the records and slices in its folder.

        Every process loads the file.
        """
        if is_with_deepspeed(checkpoint):
            from ckpttool.trainers.lightning.deepspeed_saves import read_by_all as read_with_deepspeed

            return read_with_deepspeed(checkpoint)
        from ckpttool.trainers.torch_dcp.store import read_by_all

        return read_by_all(checkpoint)

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the file or folder to move.

        Refuse if `ckpt_path="last"` may load the save, or if a person may have chosen its name.
        """
        last = next(filter(is_last, (checkpoint.name, *checkpoint.aliases)), None)
        if last is not None:
            return Refusal(why=f"is the target of {last}, from which a start with ckpt_path='last' may resume")
        if is_bare(checkpoint.name):
            return Refusal(why="has a name without a number, which a person may have chosen")
        return Members(paths=(checkpoint.name,))

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in the save's folder, or in ckpttool's own folder if the save is a file."""
        if any("/" in shard.path for shard in checkpoint.shards):
            return super().seal_place(checkpoint)
        path = own_path(checkpoint.name, ".manifest.json")
        return SealPlace(path=path, layout=self.name, checkpoint=checkpoint.name, prefix=checkpoint.prefix)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the file or folder, never for `last`.

        They are for the code, or for the command line of a LightningCLI.
        """
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        in_code, on_line = Place.parsed("code:trainer.fit(..., ckpt_path)"), Place.parsed("argument:--ckpt_path")
        return LoadSettings(
            trainer=TRAINER.name,
            path=path,
            settings=(
                TrainerSetting(place=in_code, value=path, is_path=True),
                TrainerSetting(place=on_line, value=path, is_path=True, is_alternative=True),
            ),
            remarks=("Never use ckpt_path='last': it loads the newest file named last*.ckpt, whatever its content.",),
        )
