"""Layout of files by `torch.save`, each a whole save, under any names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Content, Inventory, StepSource
from ckpttool.core.records import SealPlace, own_path
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.torch_files import LAYOUT, TRAINER

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.shard import ShardRole
    from ckpttool.core.domain.units import Rank

_CHOSEN = r"(?i)(?:.*[^a-z])?(?:best|top|last|latest|final|init|pretrained|backup|copy)(?:[^a-z].*)?"
"""Names that a script replaces, or that a person chose."""


class TorchFilesLayout(Untracked):
    """A layout with one file per save; the script chooses its name and contents."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """Read the pickle of the files with the highest numbers; older files are listed by name."""
        from ckpttool.trainers.torch_files.scan import scan_saves

        return scan_saves(storage, listing)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Read the pickle of a save that the scan listed by name, and report a step that differs from the name."""
        if checkpoint.step_source is not StepSource.NAME or checkpoint.content is not Content.UNKNOWN:
            return checkpoint
        from ckpttool.trainers.torch_files.scan import confirmed

        return confirmed(storage, checkpoint)

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is a usual temporary name of a script that renames its finished files."""
        return name.endswith((".tmp", ".temp", ".partial"))

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return the file, which every process loads."""
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll(surely=tuple(shard.path for shard in checkpoint.shards))

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the file.

        Refuse if its step is known only from its name, or if its name does not come from a counter.
        """
        if checkpoint.is_tracked:
            return Refusal(why="is the one that last_checkpoint names, from which MMEngine and Detectron2 resume")
        if checkpoint.aliases:
            return Refusal(why=f"is also {checkpoint.aliases[0]}, a link to the same file")
        if checkpoint.step_source is not StepSource.CONTENT:
            return Refusal(why="is a file whose step is not confirmed by its contents")
        if re.search("[0-9]", checkpoint.name) is None or re.fullmatch(_CHOSEN, checkpoint.name):
            return Refusal(why="is a file whose name does not come from a counter")
        return Members(paths=(checkpoint.name,))

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in ckpttool's own folder."""
        path = own_path(checkpoint.name, ".manifest.json")
        return SealPlace(path=path, layout=self.name, checkpoint=checkpoint.name, prefix=checkpoint.prefix)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Refuse, because each save is a single file."""
        return Refusal(why="has checkpoints that are single files: no rank has a copy")

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return the path for the script's own call of `torch.load`, or for its option."""
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        setting = TrainerSetting(place=Place.parsed("code:torch.load(f)"), value=path, is_path=True)
        return LoadSettings(trainer=TRAINER.name, path=path, settings=(setting,))
