"""Base of layouts whose ranks write each save together, with a record of its files."""

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
    """Base of layouts with one folder per save, and no health file next to the saves."""

    name: str
    title: str
    """Display name of the layout's trainer, for sentences."""
    is_tree: Final = True
    rank_files = RankFiles.TOGETHER

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Expect the files in each save's own record or names; external evidence adds nothing."""
        return by_own_records(inventory)

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in the save's own folder, in which the trainer ignores other files."""
        return SealPlace.inside(checkpoint.name, layout=self.name, checkpoint=checkpoint.name)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Refuse, because data that ranks share are saved only once."""
        return Refusal(
            why=f"has checkpoints of {self.title}, which saves each slice once: no rank's file is a copy of another's"
        )

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Return None, because no file is a copy of another."""
        return None

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Refuse, because the trainer writes no health file."""
        return Refusal(why=f"is for trainers with a health file, and {self.title} has none")


class Untracked(WrittenTogether):
    """Base of such layouts for trainers without a record that names the last save."""

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Yield no pointers.

        A start that names no save relies on the saves' names, or on its script.
        """
        return iter(())

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return no contents, because no record names a save."""
        return {}
