"""verl's layout: `global_step_3/actor/model_world_size_2_rank_0.pt`, and a tracker next to the saves."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.units import Rank
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.tracker_file import tracker_naming, tracker_pointer
from ckpttool.trainers.common.written_together import WrittenTogether
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.verl import LAYOUT, TRAINER, folder_of, is_data, step_of

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText


class VerlLayout(WrittenTogether):
    """A layout with one folder per save, shared by all ranks, and a tracker file next to these folders."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its small records and the tracker."""
        from ckpttool.trainers.verl.scan import scan_saves

        return scan_saves(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return the save unchanged, because the scan is complete."""
        return checkpoint

    def is_unfinished(self, name: str) -> bool:
        """Return False, because verl writes directly to the final name."""
        return False

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder with its contents."""
        data = tuple(shard.path for shard in checkpoint.shards if is_data(posixpath.basename(shard.path)))
        return Members(paths=(checkpoint.name,), records=data)

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return no files.

        Each rank reads its own files, and one process reads the tracker and the position in the data.
        """
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll()

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read the tracker."""
        return iter((tracker_pointer(storage, folder_of),))

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return the contents of a tracker that names this save."""
        step = step_of(checkpoint.name)
        return {} if step is None else tracker_naming(checkpoint.name, step)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the save's folder, and for `resume_mode`, which is otherwise `auto`."""
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        return LoadSettings(
            trainer=TRAINER.name,
            path=path,
            settings=(
                TrainerSetting(place=Place.parsed("argument:trainer.resume_mode"), value="resume_path"),
                TrainerSetting(place=Place.parsed("argument:trainer.resume_from_path"), value=path, is_path=True),
            ),
        )
