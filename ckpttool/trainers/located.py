"""The tree that a path means, and what is asked of the machines that have it where this one does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from ckpttool.core.domain.frozen import dataclass
from ckpttool.trainers.base import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
    from ckpttool.core.domain.preflight import DiskNeed, NextSaves
    from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.domain.units import ByteCount
    from ckpttool.core.domain.verdict import ShardReport
    from ckpttool.core.records import SealPlace
    from ckpttool.core.storage.base import Storage
    from ckpttool.core.verify.observation import Engines
    from ckpttool.trainers.base import Layout, ScanOptions
    from ckpttool.trainers.listing import Listing

Disk: TypeAlias = "tuple[str, ...]"
"""What tells one disk of several machines from another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The tree that a path means."""

    storage: Storage
    listing: Listing
    layout: Layout
    focus: str | None
    """The shard's or the save's own name, where the path was one."""
    resolved_from: str | None
    """What was taken instead of the path itself, for people; None where it is the path."""
    machines: Machines | None = None
    """Those that have the tree and looked at it; None where it is read from here."""


class Machines(Protocol):
    """Machines that have a tree and looked at it: what they saw is all that is known of it here."""

    @property
    def source(self) -> str:
        """How what they saw was given, for people."""
        ...

    def folder(self) -> str:
        """Return the tree's folder as they have it, from `/` on.

        Raises:
            UsageError: They have it at several places, or do not say where.
        """
        ...

    def report(self, path: str) -> ShardReport | None:
        """Return what was seen of a shard; None where nobody looked at it."""
        ...

    def engines(self, question: CheckQuestion) -> Engines:
        """Return what answers for shards that cannot be opened here."""
        ...

    def without_half_gone(
        self, located: Located, inventory: Inventory, options: ScanOptions
    ) -> tuple[Located, Inventory]:
        """Return a tree without the saves of which one machine let its files go, and another has its own still."""
        ...

    def assessed(self, located: Located, inventory: Inventory, question: TreeQuestion) -> Inventory:
        """Say what they found damaged before, what is not known because they looked, and where they disagree."""
        ...

    def placed(
        self, decision: ResumePlan | NoResumePoint, layout: Layout, inventory: Inventory
    ) -> ResumePlan | NoResumePoint:
        """Say which ranks start where and what a machine lacks; of no decision, where machines merely disagree."""
        ...

    def disk_needs(self, coming: NextSaves, sizes: Mapping[str, int]) -> tuple[DiskNeed, ...] | Finding:
        """Compare what the next saves put on each disk with what was free there, or say why nobody knows.

        Args:
            coming: Where they go, and how many must fit.
            sizes: Bytes of each file of the save that is resumed from, by its path.
        """
        ...

    def sizes(self, path: str, size: ByteCount) -> Mapping[Disk, ByteCount]:
        """Return the bytes of a file on each disk that has it.

        Args:
            path: Of the file.
            size: Its bytes where all have the same.
        """
        ...

    def hosts(self) -> Mapping[Disk, str]:
        """Return a machine for each disk, one that can change what lies there if any can."""
        ...


class PartsReader(Protocol):
    """What finds the tree of which several machines wrote down what they saw."""

    def __call__(self, path: str, *, layout: str | None, config: RunConfig | None, root: str | None) -> Located:
        """Return that tree.

        Args:
            path: Of what they wrote, as it was given.
            layout: Take this one alone.
            config: Of the run that is to resume.
            root: What the tree is called where its machines call it differently.

        Raises:
            UnknownLayoutError: None of them saw one.
            UsageError: They saw several, and nobody says which is meant.
            IncompleteError: Not all of them were asked, or nothing of it can be read.
        """
        ...


def seal_place_of(layout: Layout, checkpoint: Checkpoint) -> SealPlace | None:
    """Return where a checkpoint's seal is kept; None where its layout has no place for one."""
    place = layout.seal_place(checkpoint)
    return None if isinstance(place, Refusal) else place
