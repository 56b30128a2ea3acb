"""The tree at a path, and the interface to the machines that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from ckpttool.core.domain.frozen import dataclass
from ckpttool.trainers.base import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.node import Node
    from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
    from ckpttool.core.domain.preflight import DiskNeed, NextSaves
    from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.domain.shard import FileStamp
    from ckpttool.core.domain.units import ByteCount
    from ckpttool.core.records import SealPlace
    from ckpttool.core.records.damaged import FoundDamaged
    from ckpttool.core.storage.base import Storage
    from ckpttool.core.storage.disk import Disk
    from ckpttool.core.verify.observation import Engines
    from ckpttool.trainers.base import Layout, ScanOptions
    from ckpttool.trainers.listing import Listing

DiskKey: TypeAlias = "tuple[str, ...]"
"""Key of one disk among those of several machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The tree at a path."""

    storage: Storage
    listing: Listing
    layout: Layout
    focus: str | None
    """Name of the shard or save, if the path named one."""
    resolved_from: str | None
    """The path used instead of the user's path, for messages; None if the two are the same."""
    machines: Machines | None = None
    """The other machines with records of the tree; None if the tree is read on this machine."""


class Machines(Protocol):
    """The machines that have a tree: only this machine, or other machines whose records are available here."""

    @property
    def is_here(self) -> bool:
        """Whether this machine reads the tree itself."""
        ...

    def folder(self, root: str) -> str:
        """Return the absolute path of the tree's folder on these machines.

        Args:
            root: The folder as named in the inventory.

        Raises:
            UsageError: The machines have the tree in different places, or did not record the place.
        """
        ...

    def engines(self, question: CheckQuestion) -> Engines | None:
        """Return the engines for shards that cannot be opened here; None if all shards can be opened."""
        ...

    def without_half_gone(
        self, located: Located, inventory: Inventory, options: ScanOptions
    ) -> tuple[Located, Inventory]:
        """Return a tree without the saves that one machine moved to its trash while another machine still has them."""
        ...

    def found_damaged(self, storage: Storage) -> tuple[Mapping[str, FoundDamaged], Callable[[str], FileStamp]]:
        """Return the files found damaged earlier, by path, and a function from such a path to the file's stamp."""
        ...

    def assessed(self, inventory: Inventory, question: TreeQuestion) -> Inventory:
        """Add findings to an inventory about missing or early parts, and about files that differ between machines."""
        ...

    def placed(
        self,
        decision: ResumePlan | NoResumePoint,
        layout: Layout,
        inventory: Inventory,
        question: TreeQuestion,
        node: Node | None,
    ) -> ResumePlan | NoResumePoint:
        """Add each rank's start machine and missing files to a decision, and the files that other machines may have.

        Args:
            decision: The plan, or the reason for having no plan.
            layout: The layout of the tree.
            inventory: The inventory of the tree.
            question: The path and options of the request.
            node: This machine's environment and mounts; None to read these here.
        """
        ...

    def disk_needs(
        self, coming: NextSaves, storage: Storage, paths: tuple[str, ...], disk: Disk
    ) -> tuple[DiskNeed, ...] | Finding:
        """Compare the next saves with the free space of each disk, least space first.

        If the space is unknown, return a finding with the reason.

        Args:
            coming: The folder of the next saves, and how many must fit.
            storage: The storage of the tree.
            paths: The shards of the save to resume from; the next saves are assumed to be similar.
            disk: This machine's file systems.
        """
        ...

    def sizes(self, path: str, size: ByteCount) -> Mapping[DiskKey, ByteCount]:
        """Return the size of a file on each disk that has the file.

        Args:
            path: The path of the file.
            size: The file's bytes, if all copies have the same size.
        """
        ...

    def hosts(self) -> Mapping[DiskKey, str]:
        """Return a machine for each disk, preferably one that may write to the disk.

        The result is empty if this machine reads the tree itself.
        """
        ...


class PartsReader(Protocol):
    """Reader of a tree that several machines recorded in parts."""

    def __call__(self, path: str, *, layout: str | None, config: RunConfig | None, root: str | None) -> Located:
        """Return the tree that the parts describe.

        Args:
            path: The path of the parts, as the user typed it.
            layout: Use only this layout.
            config: The config of the run to resume.
            root: The tree's path, if the path differs between its machines.

        Raises:
            UnknownLayoutError: No machine saw a tree.
            UsageError: The machines recorded several trees, and none is selected.
            IncompleteError: Some parts are missing, or no part can be read.
        """
        ...


class PartTraces(Protocol):
    """Reader of the traces of earlier saves in the parts of machines without a checkpoint."""

    def __call__(self, path: str, *, root: str | None) -> tuple[str, dict[str, str | None]]:
        """Return the tree's path, and for each part's name the trace of an earlier save.

        A trace is empty if that machine has no trace, and None if this is unknown.

        Args:
            path: The path of the parts, as the user typed it.
            root: The tree's path, if the path differs between its machines.

        Raises:
            UsageError: The machines recorded several trees.
            IncompleteError: Some parts are missing, or no part can be read.
        """
        ...


def seal_place_of(layout: Layout, checkpoint: Checkpoint) -> SealPlace | None:
    """Return the place of a checkpoint's seal; None if the layout has no such place."""
    place = layout.seal_place(checkpoint)
    return None if isinstance(place, Refusal) else place
