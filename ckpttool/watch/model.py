"""The state of a watched tree, its observations, and its events."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Finding, of_findings, safest
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.question import LogQuestion
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.errors import ExitCode

if TYPE_CHECKING:
    from ckpttool.core.domain.amounts import Amount
    from ckpttool.core.domain.finding import Row
    from ckpttool.core.domain.node import Space
    from ckpttool.core.domain.question import TreeQuestion
    from ckpttool.nodes.model import PartQuestion


class SaveState(str, Enum):
    """The state of a save. A deleted save has no state."""

    SAVING = "saving"
    COMPLETE = "complete"
    """All files exist, and none is changing any more."""
    GOOD = "good"
    BAD = "bad"
    """The save was reported as not good, for any reason."""


class EventKind(str, Enum):
    """The kind of an event. Scripts may rely on the values: new ones are added, none are renamed."""

    GOOD = "good"
    BAD = "bad"
    UNREADABLE = "unreadable"
    """The save could not be read to the end within the patience. It is unknown, but not known to be damaged."""
    HEALTH_UNKNOWN = "health-unknown"
    """The save is intact, but within the patience no log has a value to compare with the threshold."""
    READ_AGAIN = "read-again"
    """The save is still good, some time after it was written."""
    SAVE_INCOMPLETE = "save-incomplete"
    SAVE_OVERDUE = "save-overdue"
    CHECKSUM_MISMATCH = "checksum-mismatch"
    """A good save has changed."""
    DISK_SPACE_LOW = "disk-space-low"
    ROOM_LOW = "room-low"
    """After the next save, less space than requested will be free."""
    RESUME_PROVEN = "resume-proven"
    """The logs prove that the last start resumed the training as it was."""
    RESUME_WRONG = "resume-wrong"
    RESUME_UNKNOWN = "resume-unknown"
    """The logs of the last start and of the one before it do not show whether the resume worked."""
    PART_STALE = "part-stale"
    """In a folder of parts, a machine no longer writes its part."""
    PART_MISSING = "part-missing"
    """In a folder of parts, the part of a machine is missing."""


UNKNOWN_WORDS = frozenset({VerdictWord.UNREADABLE, VerdictWord.UNSTABLE, VerdictWord.UNSUPPORTED})
"""Verdicts that show neither that a save is good nor that it is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSave:
    """A save as observed by a poll, without reading its content."""

    key: str
    """Key of the save in the tree."""
    name: str
    step: Step | None
    fingerprint: str
    """A text that changes if a file is added, removed or changed."""
    incomplete: tuple[Finding, ...] = ()
    """Findings about files that are missing in the listing so far."""
    nbytes: ByteCount | None = None
    age: float | None = None
    """Seconds since a file was last written, by the clocks of the disk and this machine. None if unknown."""
    written_ns: tuple[int, int] | None = None
    """Times at which the first and the last file were written, by the disk's clock. None if unknown."""
    files: int = 0
    """Number of files with tensors or state."""
    beside: str = ""
    """A text that changes with any other file in the save's own folder, such as records and temporary files."""
    is_committed: bool = False
    """Whether the trainer itself reports the save as finished."""

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Ranks with missing files, in ascending order."""
        return tuple(sorted({rank for finding in self.incomplete for rank in finding.ranks}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """One machine's part of a tree, as observed by a poll."""

    number: int
    """Number of the part, from 1."""
    name: str
    """Name for messages."""
    mark: str
    """A text that changes when the part is rewritten. Empty if the part does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The result of one poll of a tree."""

    saves: tuple[SeenSave, ...]
    """The saves, newest first."""
    is_complete: bool = True
    """Whether all folders could be listed. If not, missing files may be in an unlisted folder."""
    free_bytes: ByteCount | None = None
    """Free bytes on the tree's disk, or None if unknown."""
    spaces: tuple[Space, ...] = ()
    """Limits on the next save, the disk and quotas. Empty if no limit is watched, or if they are unknown."""
    nodes: tuple[SeenNode, ...] = ()
    """The machines' parts by number. Empty if this machine sees the tree itself."""
    under_way: str = ""
    """A text that changes with temporary files, which show that some rank is still writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNode:
    """The stored state of one machine's part."""

    number: int
    name: str
    mark: str
    since: float
    """Time at which the part was last observed to be written, by the watch's own clock."""
    told: bool = False
    """Whether the part was reported as no longer written, or as missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSave:
    """The stored state of one save. Times are in seconds of the watch's own clock."""

    key: str
    name: str
    step: Step | None
    fingerprint: str
    state: SaveState
    first_seen: float
    """Time at which the save arrived, or at which its reported state ended."""
    changed_at: float
    """Time of the last change in the save's files."""
    still: int = 0
    """Number of polls since the last change."""
    judged_at: float | None = None
    """Time of the last read in the current state, or None if the save has not been read."""
    word: VerdictWord | None = None
    """The last verdict in one word."""
    was_good: bool = False
    """Whether the save was ever good, regardless of later changes."""
    told_incomplete: bool = False
    read_again: bool = False
    """Whether the save was read again after it was verified as good."""
    good_as: str = ""
    """Fingerprint of the save when it was last verified as good."""
    seal_tried: bool = False
    """Whether the current state of the save was read in order to seal it."""
    newest_ns: int | None = None
    """Time at which the last file was written, by the disk's clock. None if unknown."""
    good_ns: int | None = None
    """The same time when the save was last verified as good."""
    rewritten: bool = False
    """Whether a run that went back to an earlier step has rewritten every file since the save was good."""
    files: int = 0
    """Number of files with tensors or state."""
    good_files: int = 0
    """The same number when the save was last verified as good."""
    beside: str = ""
    """The value of `SeenSave.beside` at the last poll."""
    why: str = ""
    """Why the save is not good, by the listing or the last read. Empty if it is good or was not read."""

    @property
    def is_suspended(self) -> bool:
        """Whether the save was read and is not good, but is not reported yet because it may be in progress."""
        return self.state is SaveState.COMPLETE and self.judged_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownResume:
    """The stored result for the last start of the training that was judged."""

    start: str
    """Changes with the start."""
    step: Step | None
    """Step of the save that it should have resumed from, or None if unknown."""
    is_wrong: bool | None
    """Whether the resume is wrong and the user does not accept it. None if the logs do not show it."""
    codes: tuple[str, ...]
    """Codes of the faults."""
    why: str
    """The answer in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """All known facts about a watched tree."""

    saves: tuple[KnownSave, ...] = ()
    """The saves, newest first."""
    now: float = 0.0
    """The watch's own clock at the last poll, in seconds. This clock never goes back."""
    last_new: float | None = None
    """Arrival of the latest save, by this clock, or None without a save.

    For saves in the first poll, the time of writing.
    """
    newest: str | None = None
    """The key of the latest save."""
    intervals: tuple[float, ...] = ()
    """Seconds between the last few saves."""
    durations: tuple[float, ...] = ()
    """Seconds from the first to the last file, for the last few saves."""
    overdue_told: bool = False
    """Whether the next save was reported as overdue."""
    low_told: bool = False
    """Whether lack of space for the next save was reported."""
    room_told: bool = False
    """Whether it was reported that less space than requested will be free."""
    unseen_since: float | None = None
    """Time at which the tree became invisible or empty, or None if it is visible."""
    unseen_told: bool = False
    nodes: tuple[KnownNode, ...] = ()
    """The machines' parts by number."""
    under_way: str = ""
    """The value of `Sighting.under_way` at the last poll."""
    resume: KnownResume | None = None
    """The last resume that was judged. None if the logs show no resume, or a newer one that is not judged yet."""

    @property
    def exit_code(self) -> ExitCode:
        """The safest exit code over the verdicts on all saves and on the last resume.

        It is 14 if a save was not read, 10 if the resume is wrong, and 11 without a save.
        """
        if not self.saves:
            return ExitCode.NOTHING_TO_RESUME
        codes = {ExitCode.INCOMPLETE for node in self.nodes if node.told or not node.mark}
        if self.resume is not None and self.resume.is_wrong:
            codes.add(ExitCode.DAMAGE)
        if {save.state for save in self.saves} & {SaveState.SAVING, SaveState.COMPLETE}:  # unread, or without a result
            codes.add(ExitCode.INCOMPLETE)
        for save in self.saves:
            is_not_good = save.state is SaveState.BAD or save.told_incomplete or save.is_suspended
            if is_not_good and save.word not in {None, *UNKNOWN_WORDS}:
                codes.add(ExitCode.UNSAFE if save.word is VerdictWord.UNSAFE else ExitCode.DAMAGE)
            elif save.state is SaveState.BAD:
                codes.add(ExitCode.INCOMPLETE)
        return safest(codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRule:
    """The conditions of a watch's events."""

    settle: int = 2
    """Number of polls without a change after which a save counts as complete."""
    patience: float | None = None
    """Seconds without a change before an incomplete save is reported. None for three times a save's duration."""
    again: float = 3600.0
    """Seconds after which a good save is read again, unless a newer save is good earlier. 0 for never."""
    seal: bool = False
    """Whether good saves are to be sealed."""
    rested: float | None = None
    """Age in seconds from which a file counts as complete without polls, or None if only polls count."""
    free_below: Amount | None = None
    """Space that must be free after the next save, or None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A request to read a save."""

    key: str
    fingerprint: str
    final: bool
    """Whether patience has ended, so that findings are reported even if a save in progress would have them."""
    cold: bool
    """Whether the save was good before, and is read again."""
    seal: bool = False
    """Whether to seal the save if it is good."""
    fresh: bool = False
    """Whether the save has not been good yet, so that its current state is the one that the trainer intended."""
    rewritten: bool = False
    """Whether a later run has rewritten every file, so that the records belong to another save of the same name."""
    grown: bool = False
    """Whether files were added to those verified as good, so that the records were made too early."""
    beside: str = ""
    """The value of `SeenSave.beside`."""
    early: bool = False
    """Whether to read the save only if it is no longer in memory, because the next read is not due yet."""
    good_ns: int | None = None
    """Time at which the last file was written when the save was last verified as good. None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of reading a save."""

    request: Judge
    word: VerdictWord
    findings: tuple[Finding, ...]
    cached: bool | None = None
    """Whether most of the save came from memory instead of the disk, or None if the system does not show that."""
    sealed: bool = False
    """Whether the save is sealed now."""
    norm: float | None = None
    """Embedding local norm (sum of squares) at the save, if a threshold is set and the log contains the norm."""
    written_since: frozenset[str] = frozenset()
    """Paths of the files that were written since the save was good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent(Answered):
    """An event in a watched tree."""

    NOUN = "event"

    kind: EventKind
    subject: str
    """The key of the save and the state of its files, to recognize duplicates."""
    name: str | None
    """Name of the save, or None if no save is concerned."""
    step: Step | None
    word: VerdictWord | None = None
    findings: tuple[Finding, ...] = ()
    cached: bool | None = None
    """Whether most of the save came from memory instead of the disk. None if unknown."""
    sealed: bool = False
    why: str = ""
    """The reason in one line. Empty if name, verdict and findings show it."""
    root: str = ""
    """Path of the tree, as the user would write it."""
    id: str = ""
    """32 hexadecimal digits, equal for duplicates."""
    at: float = 0.0
    """Time of the report, in seconds since 1970."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of this event's findings."""
        return of_findings(self.findings)


Action: TypeAlias = "Judge | WatchEvent"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchQuestion:
    """The tree to watch, and the options."""

    tree: TreeQuestion
    rule: WatchRule = WatchRule()
    every: float = 30.0
    """Seconds between two polls."""
    once: bool = False
    """Whether to poll only once and read everything available."""
    level: Level = Level.CHECKSUM
    seal: bool = False
    threshold: float | None = None
    """Embedding local norm (sum of squares) from which a save is unhealthy. None to use only the trainer's record."""
    logs: LogQuestion = LogQuestion()
    """Patterns of the logs that contain norms and losses. Without patterns, the logs in the output folder are used."""
    allowed: tuple[Row, ...] = ()
    """Faults of a resume that the user accepts."""
    hook: tuple[str, ...] = ()
    """The command to run for each event, as words. Empty for no command."""
    max_rate: int | None = None
    """Maximum average number of bytes to read per second, or None for no limit."""
    metrics: str | None = None
    """Path of the metrics file for Prometheus' node exporter, or None for no file."""
    listen: tuple[str, int] | None = None
    """Host and port of the metrics server, or None for no server."""
    environment: Mapping[str, str] | None = None
    """Environment of the process, for the path of the state and for hooks."""
    part: PartQuestion | None = None
    """The part that this machine records for a watch that judges all parts, or None if this watch judges."""
