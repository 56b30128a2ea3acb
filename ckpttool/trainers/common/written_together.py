"""What layouts share whose saves all ranks write together, each of which tells itself what belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ckpttool.core.domain.expectation import Evidence, Expected, RankFiles
from ckpttool.core.records import SealPlace
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.common.listed import by_own_records

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.pointer import Pointer, PointerText
    from ckpttool.core.domain.replicas import RecordedSlices
    from ckpttool.core.domain.shard import ShardRole
    from ckpttool.core.domain.units import Rank
    from ckpttool.core.storage.base import Storage


class WrittenTogether:
    """A folder for each save, and no file beside them that tells of their health."""

    name: str
    title: str
    """What people call its trainer: for sentences."""
    is_tree: Final = True
    rank_files = RankFiles.TOGETHER

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Go by each save's own record, or its names; what is said from outside tells no more."""
        return by_own_records(inventory)

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in the save's own folder, which its trainer does not mind."""
        return SealPlace.inside(checkpoint.name, layout=self.name, checkpoint=checkpoint.name)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Refuse: what ranks hold alike is saved once."""
        return Refusal(
            why=f"has checkpoints of {self.title}, which saves each slice once: no rank's file is a copy of another's"
        )

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Read none: no file is a copy of another."""
        return None

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Refuse: the trainer keeps no health file."""
        return Refusal(why=f"is for trainers with a health file, and {self.title} has none")


class Untracked(WrittenTogether):
    """The same, if nothing beside the saves names one as the last."""

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read none: what a start takes that names no save, the saves' names tell, or its script does."""
        return iter(())

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Spell none."""
        return {}
