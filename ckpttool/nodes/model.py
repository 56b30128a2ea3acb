"""The data types: a part records one machine's view of a tree, and a merge combines all parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.manifest import Sealing
from ckpttool.core.domain.node import Room
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount, Rank, counted
from ckpttool.core.domain.verdict import Level, ShardReport, VerdictWord
from ckpttool.core.errors import ExitCode

if TYPE_CHECKING:
    from ckpttool.core.domain.question import CheckQuestion, TreeQuestion

MOST_PART_BYTES = ByteCount(64 << 20)
"""Maximum size of a part in bytes: a part of 8 ranks has about 20 KB."""

MOST_PARTS_BYTES = ByteCount(2 << 30)
"""Maximum size of all parts of a tree together, in bytes."""

BREAK_NS = 3600 * 10**9
"""Maximum delay between two machines in one run without a name."""

_MOST_NAMED = 8
"""Maximum number of part numbers in one line."""

_MOST_TORN = 2
"""Maximum number of unreadable files, with reasons, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The number of a part, with the place and time of the recording."""

    number: int
    """Number of the part, from 1."""
    of: int
    run: str
    """Name of the run, the same for all of its parts; empty if unknown."""
    host: str
    disk: str
    """An identifier of the disk: the same for two parts on one disk, and different for two disks."""
    shared: bool
    """Whether other machines see this disk."""
    root: str
    """The tree's path on that machine."""
    began_ns: int
    """Start of the recording, in nanoseconds since 1970."""
    ended_ns: int
    level: Level
    share: str | None = None
    """The process's share of the files on a common disk: `2/8`; None if the process recorded all visible files."""
    claims: tuple[Rank, ...] | None = None
    """Ranks that will start on this machine, ascending; None if unknown."""
    room: Room | None = None
    """Free space on this disk; None if unknown."""
    absolute: str | None = None
    """`root` as an absolute path; None if the version that wrote the part did not record it."""
    unwritable: tuple[str, ...] = ()
    """The tree and its folders to which the user of the process cannot write."""
    inode: int | None = None
    """ID of the tree's folder: an export has the same ID under each of its addresses; None if there is no folder."""

    trace: str | None = None
    """The trace of an earlier save, if the machine has no checkpoint; empty if it has no trace.

    None if it has one, if this is unknown, or if the version that wrote the part did not record it.
    """

    @property
    def name(self) -> str:
        """The name of the part, for messages."""
        return f"part {self.number} of {self.of} ({self.host})"

    @property
    def own_disk(self) -> str | None:
        """The machine's own disk; None for a disk that other machines see. All such disks count as one."""
        return None if self.shared else self.disk

    @property
    def folder(self) -> str:
        """The tree's folder, as an absolute path if the part has one."""
        return self.absolute or self.root


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One machine's file at a path that several machines have."""

    seat: Seat
    stamp: FileStamp
    report: ShardReport | None
    """The report on the file; None if the file was not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """All parts of a tree, without their contents."""

    source: str
    """The inputs, for messages."""
    root: str
    """The tree's path on its machines."""
    of: int
    """Number of parts."""
    seats: tuple[Seat, ...]
    """The seats, sorted by number, host and time."""
    missing: tuple[int, ...]
    """Numbers of parts that were not passed or not read, from 1."""
    blind: Mapping[int, str]
    """Numbers of parts that could not list the tree's folder, each with the reason."""
    unread: tuple[tuple[str, str], ...]
    """Inputs that are not readable parts, with name and reason."""
    left_out: tuple[Seat, ...]
    """Parts from a different run, and older parts with the same number."""
    holders: Mapping[str, tuple[int, ...]]
    """By path of a file, the positions in `seats` of the machines that have the file."""
    copies: Mapping[str, tuple[Copy, ...]]
    """Records of files that several parts have, by path; records that are equal on one disk appear only once."""
    seats_read: tuple[Seat, ...] = ()
    """All `seats`, and those that could not list the tree's folder."""
    divided: tuple[Mapping[str, str], ...] = ()
    """For each seat, by folder: hashes of all names in each folder whose files were divided among processes."""
    different: frozenset[str] = frozenset()
    """Records that differ between the seats, by path."""

    @property
    def places(self) -> tuple[str, ...]:
        """The absolute paths of the tree on its machines; empty if unknown."""
        if self.root.startswith("/"):
            return (self.root,)
        return tuple(sorted({seat.absolute for seat in self.seats if seat.absolute is not None}))

    @property
    def lacking(self) -> str:
        """The parts that are missing or could not list the folder, for messages; empty if every part could."""
        numbers = sorted({*self.missing, *self.blind})
        if not numbers:
            return ""
        named = {number: str(number) for number in numbers[:_MOST_NAMED]}
        for seat in self.left_out:
            if seat.of == self.of and seat.number in named:
                named[seat.number] = f"{seat.number} ({seat.host} in an older part)"
        more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
        verb = "is" if len(numbers) == 1 else "are"
        reasons = [f"of {counted(self.of, 'part')} {', '.join(named.values())}{more} {verb} missing"]
        if self.missing:
            reasons += [f"{name} {why}" for name, why in self.unread[:_MOST_TORN]]
        blind = sorted(self.blind.items())[:_MOST_NAMED]
        reasons += [f"part {number} could not list the folder ({why})" for number, why in blind]
        return "; ".join(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The files of a tree on one machine, and the ranks that start there."""

    host: str
    root: str
    """The tree's folder, by its path on the machine."""
    shared: bool
    """Whether other machines see the machine's disk."""
    claims: Collection[Rank] | None
    """Ranks that will start on the machine; None if unknown."""
    files: AbstractSet[str]
    """The machine's files, by path relative to the tree's folder."""


class Split(str, Enum):
    """The processes that divide the visible files among themselves."""

    AUTO = "auto"
    """All parts if other machines see the disk; otherwise the parts of this machine."""
    NODE = "node"
    """The processes that the launcher started on this machine."""
    ALL = "all"
    """All parts."""
    NONE = "none"
    """Files are not divided: each process records all visible files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartQuestion:
    """The tree to record, the number of the part, and the file to write."""

    tree: TreeQuestion
    check: CheckQuestion
    """The level of the check, and the saves to check; the headers of all other saves are also checked."""
    out: str
    """Path of a file or a folder."""
    part: str = "auto"
    """`I/N`; `auto`, or `auto/N` if a launcher does not give the number."""
    split: Split = Split.AUTO
    ranks: tuple[Rank, ...] | None = None
    """Ranks that will start on this machine; None if unknown."""
    devices_per_node: int | None = None
    """Number of devices per machine, which determines the ranks together with the machine's number; None if unknown."""
    run: str | None = None
    """Name of the run, the same in all of its parts; None to use the launcher's."""
    seal: bool = False
    """Whether to record checksums of the visible shards too, which reads the checkpoints in `check`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWritten(Answered):
    """A part that was written, whatever its contents."""

    NOUN = "part"

    seat: Seat
    """The number of the part, with the place and time of the recording."""
    version: str
    """Version of ckpttool that wrote the part."""
    path: str
    """Path of the part's file."""
    nbytes: ByteCount
    """Size of the file in bytes."""
    resolved_from: str | None
    """The path used instead of the requested one, for messages."""
    found: bool
    """Whether a tree was found."""
    words: tuple[tuple[VerdictWord, int], ...]
    """Number of shards per verdict, best first: each shard is judged alone, so other machines may know more."""

    sealings: tuple[Sealing, ...] | None = None
    """The saves that were sealed, newest first; None if sealing was not requested."""

    @property
    def exit_code(self) -> ExitCode:
        """Always 0: a part is an answer, whatever its contents."""
        return ExitCode.OK

    @property
    def shards(self) -> int:
        """Number of shards that were checked."""
        return sum(count for _, count in self.words)
