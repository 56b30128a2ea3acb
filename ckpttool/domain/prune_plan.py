"""A prune that is written down: what may go on which machine, so that each of them lets go what it has of it."""

from __future__ import annotations

from enum import Enum

from ckpttool.domain.answered import Answered
from ckpttool.domain.finding import Finding
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.pointer import PointerFix
from ckpttool.domain.retention import Batch, Move, Trashed
from ckpttool.domain.units import ByteCount, Rank, Step

MOST_PLAN_BYTES = ByteCount(256 << 20)
"""Of a plan's file: 10,000 ranks with 50 checkpoints to go need 60 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One that looked."""

    host: str
    root: str
    """The tree as it lies there, from `/` on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOnDisk:
    """What of a tree lies on one disk."""

    disk: str
    """The same for two looks at one disk, and another for two disks."""
    shared: bool
    """Whether other machines see that disk."""
    machines: tuple[Machine, ...]
    """Those that saw it, by name; none where it is an object store."""

    @property
    def mover(self) -> str | None:
        """The one machine that changes it."""
        return self.machines[0].host if self.machines else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one disk has of a save."""

    disk: int
    """Which of the plan's disks, from 0."""
    ranks: tuple[Rank, ...] = ()
    """Those that have a shard there, ascending."""
    folders: tuple[str, ...] = ()
    """Folders that are the save's alone, relative to the root: each goes whole."""
    files: tuple[Move, ...] = ()
    """In the order in which they are to go, those in such folders among them."""

    @property
    def nbytes(self) -> ByteCount:
        """Bytes of all its files."""
        return ByteCount(sum(file.stamp.size for file in self.files))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSave:
    """A checkpoint that goes, or that stays for others that go."""

    name: str
    prefix: str | None
    step: Step | None
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What may go, and what must still be there when it does."""

    version: str
    """Of the ckpttool that made it."""
    made: str
    """When, in UTC, as `units.moment` spells it; texts of this form are ordered as the times are."""
    valid_until: str
    run: str
    """What is the same in all parts that it was made of; empty where nobody said, or where there were none."""
    root: str
    """The tree, as it was called."""
    layout: str
    disks: tuple[TreeOnDisk, ...]
    going: tuple[PlannedSave, ...]
    """Oldest first."""
    good: tuple[PlannedSave, ...]
    """Newest first: those because of which others may go."""
    records: tuple[PointerFix, ...]
    """The trainer's own that name what goes, with what they shall hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOrder:
    """What is done with a plan."""

    apply: bool = False
    """Do it; otherwise only say what would be done."""
    grace: float = 300.0
    """Seconds: while a shard is younger, somebody is writing here."""
    wait: float = 0.0
    """Seconds to wait for a save that is under way, or for another ckpttool that changes the tree."""
    trash_days: float | None = None
    """Days after which what earlier prunes moved to the trash is deleted, at least one; None: never from here."""


class Fate(str, Enum):
    """What becomes of a checkpoint's files on this machine. A promise to scripts: added to, never renamed."""

    GO = "go"
    GONE = "gone"
    """None of them is in its place any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveHere:
    """What this machine has of a checkpoint that goes."""

    name: str
    fate: Fate
    files: int
    nbytes: ByteCount


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanApplied(Answered):
    """What one machine has of a plan, and what became of it."""

    NOUN = "prune-applied"

    plan: PrunePlan
    path: str
    """Of the plan."""
    order: ApplyOrder
    host: str
    """This machine."""
    root: str
    saves: tuple[SaveHere, ...] = ()
    """Oldest first; nothing where another machine sees to it."""
    left_to: str | None = None
    """The machine that sees the same disk, and moves what lies on it."""
    batches: tuple[Batch, ...] = ()
    """Every rename; nothing where something speaks against it."""
    fixes: tuple[PointerFix, ...] = ()
    """Records that name what goes."""
    trash: tuple[Trashed, ...] = ()
    refusals: tuple[Finding, ...] = ()
    """Why nothing is changed, whatever was asked for."""
    resolved_from: str | None = None
    """What was taken instead of the path that was given, for people."""

    @property
    def going(self) -> tuple[SaveHere, ...]:
        """What is still here."""
        return tuple(save for save in self.saves if save.fate is Fate.GO)

    @property
    def applied(self) -> bool:
        """Whether it was done."""
        return self.order.apply and not self.refusals
