"""SkyRL's layout: `global_step_3/policy/model_world_size_2_rank_0.pt`, and a tracker next to the saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.units import Rank
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common import SKYRL_TRACKER
from ckpttool.trainers.common.tracker_file import tracker_naming, tracker_pointer
from ckpttool.trainers.common.written_together import WrittenTogether
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.verl import DATA, folder_of, step_of
from ckpttool.trainers.verl.skyrl import LAYOUT, SFT, STATE, TRAINER

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText


class SkyRlLayout(WrittenTogether):
    """A layout with one folder per save, shared by all ranks, and a tracker file next to these folders."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its record and the tracker."""
        from ckpttool.trainers.verl.skyrl.scan import scan_saves

        return scan_saves(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return the save unchanged, because the scan is complete."""
        return checkpoint

    def is_unfinished(self, name: str) -> bool:
        """Return False, because SkyRL writes directly to the final name."""
        return False

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder with its contents."""
        records = tuple(f"{checkpoint.name}/{own}" for own in (STATE, DATA))
        return Members(paths=(checkpoint.name,), records=records)

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return no files: each rank reads its own files, and one process reads the rest."""
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll()

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read the tracker."""
        return iter((tracker_pointer(storage, folder_of, path=SKYRL_TRACKER),))

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return the contents of a tracker that names this save."""
        step = step_of(checkpoint.name)
        return {} if step is None else tracker_naming(checkpoint.name, step, SKYRL_TRACKER)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the save's folder; the SFT trainer has one setting for the mode and the path."""
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        names_path = "resume_from" if dict(checkpoint.facts).get(SFT) else "trainer.resume_path"
        settings = [TrainerSetting(place=Place.parsed(f"argument:{names_path}"), value=path, is_path=True)]
        if not dict(checkpoint.facts).get(SFT):
            mode = TrainerSetting(place=Place.parsed("argument:trainer.resume_mode"), value="from_path")
            settings.insert(0, mode)
        return LoadSettings(trainer=TRAINER.name, path=path, settings=tuple(settings))
