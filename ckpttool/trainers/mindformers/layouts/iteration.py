"""MindFormers' newer layout (1.7 and later): `iteration_00000030/{prefix}-model-0000000-0000004.safetensors`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.expectation import Evidence, Expected, RankFiles
from ckpttool.core.domain.units import Rank
from ckpttool.core.records import SealPlace
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.listed import holds_its_mark
from ckpttool.trainers.common.tracker_file import tracker_naming, tracker_pointer
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.layouts.names import (
    BESIDE_THE_SAVES,
    ITERATION,
    ITERATION_LAYOUT,
    WRITTEN,
    FileKind,
    iteration_folder,
    iteration_step,
    parse_shape,
    saves_in,
)

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText
    from ckpttool.core.domain.replicas import RecordedSlices
    from ckpttool.core.domain.shard import ShardRole


class MindFormersIteration:
    """One folder for each save, shared by all ranks, with a tracker file beside them."""

    name = ITERATION_LAYOUT
    signs = ITERATION
    is_tree = True
    rank_files = RankFiles.TOGETHER

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """Read each iteration's names, common.json and metadata.json; no shard is opened."""
        from ckpttool.trainers.mindformers.layouts.iteration_scan import scan_iterations

        return scan_iterations(storage, listing, list(saves_in(listing)), options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return it as it is: the scan tells all."""
        return checkpoint

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Go by each save's own record."""
        from ckpttool.trainers.mindformers.layouts.iteration_records import expected_of_iterations

        return expected_of_iterations(inventory, evidence)

    def is_unfinished(self, name: str) -> bool:
        """Tell by the names under which MindFormers and Python write."""
        return parse_shape(name).kind is FileKind.IN_PROGRESS

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder, with all that is in it."""
        from ckpttool.trainers.mindformers.scalars import by_pynative

        if by_pynative(checkpoint):
            return Refusal(why=_ITS_OWN_RETENTION, is_of_tree=True)
        records = tuple(f"{checkpoint.name}/{record}" for record in WRITTEN)
        return Members(paths=(checkpoint.name,), records=records)

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in the save's own folder."""
        return SealPlace.inside(checkpoint.name, layout=self.name, checkpoint=checkpoint.name)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Spell it after another rank's: data-parallel ranks save the same."""
        from ckpttool.trainers.mindformers.layouts.iteration_records import path_for

        template = next((shard for shard in checkpoint.shards if shard.role is role and shard.rank is not None), None)
        return Refusal(why=f"has no rank's {role.value} shard") if template is None else path_for(template, rank)

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Name none: which of them a rank reads is told by its own slices."""
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll()

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Read them from metadata.json."""
        from ckpttool.trainers.mindformers.layouts.iteration_records import read_slices

        return read_slices(storage, checkpoint.name, files=len(checkpoint.shards))

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read the tracker."""
        return iter((tracker_pointer(storage, iteration_folder),))

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Spell the tracker."""
        return tracker_naming(checkpoint.name, iteration_step(checkpoint.name))

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Refuse: the mark is in the save itself."""
        return holds_its_mark(self.name, companion=BESIDE_THE_SAVES)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Name the save's folder: a path that has no tracker is taken as the iteration itself."""
        from ckpttool.trainers.mindformers.load import LoadKeys
        from ckpttool.trainers.mindformers.scalars import by_pynative

        if any(map(by_pynative, inventory.checkpoints)):
            return Refusal(why=_ITS_OWN_START)
        path = inventory.path_of(checkpoint.name)
        keys = LoadKeys(
            load_checkpoint=path, resume_training=True, load_ckpt_format="safetensors", use_legacy_format=False
        )
        return keys.settings(checkpoint.renames)


_PYNATIVE = "was saved by MindFormers' PyNative trainer"
_ITS_OWN_START = (
    f"{_PYNATIVE}, whose start ckpttool does not write yet: ckpttool verify --checkpoint all says which saves are"
    " whole; name the folder of one in checkpoint.load_path, with checkpoint.no_load_optim: False and"
    " checkpoint.load_balanced: False"
)
_ITS_OWN_RETENTION = f"{_PYNATIVE}, which stops removing saves for good once it misses one of its own"
