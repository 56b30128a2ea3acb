"""Composer's layout: `ep1-ba100-rank0.pt`, or a folder `ep1-ba100/` of slices, and the link `latest-rank0.pt`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.records import SealPlace, own_path
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.composer import LAYOUT, TRAINER, is_latest
from ckpttool.trainers.composer.kinds import is_folder, newer_files
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.torch_dcp.layout import FoldersOfSlices

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings

AUTORESUME = "`autoresume: true` follows latest-rank0.pt, and then ignores load_path: remove it, or move the link."


class ComposerLayout(FoldersOfSlices):
    """A layout with one file per save, or one folder if FSDP saves slices."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """Read the record of each save."""
        from ckpttool.trainers.composer.scan import scan_saves

        return scan_saves(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Read the record of a folder that is too large for a scan.

        A save in one file needs nothing more.
        """
        return super().with_own_records(storage, checkpoint) if is_folder(checkpoint) else checkpoint

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the file or folder to move; refuse if the link to the last save leads to it."""
        latest = next(filter(is_latest, (checkpoint.name, *checkpoint.aliases)), None)
        if latest is not None:
            return Refusal(why=f"is the target of {latest}, from which a start with autoresume continues")
        records = (f"{checkpoint.name}/{METADATA}",) if is_folder(checkpoint) else ()
        return Members(paths=(checkpoint.name,), records=records)

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in the save's folder, or in ckpttool's own folder if the save is a file."""
        if is_folder(checkpoint):
            return super().seal_place(checkpoint)
        path = own_path(checkpoint.name, ".manifest.json")
        return SealPlace(path=path, layout=self.name, checkpoint=checkpoint.name, prefix=checkpoint.prefix)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the file or folder, never for the link.

        They are for the code, or for LLM-Foundry's YAML. If a newer file remains, Composer must be allowed to replace
        it.
        """
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        settings = [
            TrainerSetting(place=Place.parsed("code:Trainer(..., load_path)"), value=path, is_path=True),
            TrainerSetting(place=Place.parsed("config:load_path"), value=path, is_path=True, is_alternative=True),
        ]
        remarks = [AUTORESUME]
        newer = newer_files(inventory, checkpoint.step)
        if newer:
            settings += [
                TrainerSetting(place=Place.parsed("code:Trainer(..., save_overwrite)"), value=True),
                TrainerSetting(place=Place.parsed("config:save_overwrite"), value=True, is_alternative=True),
            ]
            remarks.append(
                f"Without save_overwrite, Composer stops with a FileExistsError, because {newer[-1]} is newer; "
                "moving newer files out of save_folder also works."
            )
        return LoadSettings(trainer=TRAINER.name, path=path, settings=tuple(settings), remarks=tuple(remarks))
