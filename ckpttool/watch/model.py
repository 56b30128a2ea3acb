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
    from ckpttool.core.domain.question import TreeQuestion
    from ckpttool.nodes.model import PartQuestion


class SaveState(str, Enum):
    """The state of a save; one that is gone is no longer known."""

    SAVING = "saving"
    COMPLETE = "complete"
    """All of it is there and has come to rest."""
    GOOD = "good"
    BAD = "bad"
    """Reported as not good, for any reason."""


class EventKind(str, Enum):
    """The kind of an event. A promise to scripts: words are added, never renamed."""

    GOOD = "good"
    BAD = "bad"
    UNREADABLE = "unreadable"
    """It could not be read to its end for longer than patience lasts: unknown, not damaged."""
    HEALTH_UNKNOWN = "health-unknown"
    """Intact, but for longer than patience no log has a value to compare with the threshold."""
    READ_AGAIN = "read-again"
    """Good once more, some time after it was written."""
    SAVE_INCOMPLETE = "save-incomplete"
    SAVE_OVERDUE = "save-overdue"
    CHECKSUM_MISMATCH = "checksum-mismatch"
    """One that was good has changed."""
    DISK_SPACE_LOW = "disk-space-low"
    PART_STALE = "part-stale"
    """Of a folder of parts: a machine writes its part no longer."""
    PART_MISSING = "part-missing"
    """Of a folder of parts: a machine's part is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSave:
    """One save as a poll shows it; its content is not read."""

    key: str
    """Tells it from the tree's others."""
    name: str
    step: Step | None
    fingerprint: str
    """Changes if a file is added, removed or changed."""
    incomplete: tuple[Finding, ...] = ()
    """Files that the listing shows as missing so far."""
    nbytes: ByteCount | None = None
    age: float | None = None
    """Seconds since a file of it was written, by the disk's clock and ours; None: not known."""
    written_ns: tuple[int, int] | None = None
    """When the first and the last of its files was written, by the disk's clock; None: not known."""
    files: int = 0
    """How many of its files hold tensors or state."""
    beside: str = ""
    """Changes with any other file in its own folder: records, temporary files."""
    is_committed: bool = False
    """Whether the trainer itself says that it is finished."""

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Whose files are missing, ascending."""
        return tuple(sorted({rank for finding in self.incomplete for rank in finding.ranks}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """One machine's part of a tree, as a poll shows it."""

    number: int
    """Of the part, from 1."""
    name: str
    """For people."""
    mark: str
    """Changes when it is rewritten; empty if it does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The result of one poll of a tree."""

    saves: tuple[SeenSave, ...]
    """Newest first."""
    is_complete: bool = True
    """False if a folder could not be listed: missing files may be in it."""
    free_bytes: ByteCount | None = None
    """On the tree's disk; None if it does not say."""
    nodes: tuple[SeenNode, ...] = ()
    """By number, if machines write parts of it; none if this machine sees the tree itself."""
    under_way: str = ""
    """Changes with temporary files: some rank is still writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNode:
    """The stored state of one machine's part."""

    number: int
    name: str
    mark: str
    since: float
    """When it was written last, as far as was seen, by the watch's own clock."""
    told: bool = False
    """Whether it was reported as no longer written, or missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSave:
    """The stored state of one save. Times are seconds of the watch's own clock."""

    key: str
    name: str
    step: Step | None
    fingerprint: str
    state: SaveState
    first_seen: float
    """When it arrived, or when its reported state was no longer true."""
    changed_at: float
    """When a file of it came, went or changed last."""
    still: int = 0
    """Polls since then."""
    judged_at: float | None = None
    """When it was read last as it is now; None: not yet."""
    word: VerdictWord | None = None
    """The last verdict in one word."""
    was_good: bool = False
    """Whether it was good once, whatever became of it."""
    told_incomplete: bool = False
    read_again: bool = False
    """Whether it was read once more since it was found good."""
    good_as: str = ""
    """The fingerprint that it had when it was last found good."""
    seal_tried: bool = False
    """Whether it was read to be sealed as it is now."""
    newest_ns: int | None = None
    """When the last of its files was written, by the disk's clock; None: not known."""
    good_ns: int | None = None
    """The same when it was last found good."""
    rewritten: bool = False
    """Whether each of its files was written again since it was good: a training that went back saves it once more."""
    files: int = 0
    """As in `SeenSave`."""
    good_files: int = 0
    """The same when it was last found good."""
    beside: str = ""
    """As in `SeenSave`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """All that is known of a tree that is watched."""

    saves: tuple[KnownSave, ...] = ()
    """Newest first."""
    now: float = 0.0
    """The watch's own clock at the last poll, in seconds: it never goes back."""
    last_new: float | None = None
    """When a save came last, by this clock; of those that the first look found, when it was written. None: none came.
    """
    newest: str | None = None
    """The key of that save."""
    intervals: tuple[float, ...] = ()
    """Seconds between saves, the last few."""
    durations: tuple[float, ...] = ()
    """Seconds from the first file of a save to the last, the last few."""
    overdue_told: bool = False
    """Whether the next save was reported as overdue."""
    low_told: bool = False
    """Whether lack of space for the next save was reported."""
    unseen_since: float | None = None
    """When the tree could not be seen any more, or had nothing in it; None: it is seen."""
    unseen_told: bool = False
    nodes: tuple[KnownNode, ...] = ()
    """By number."""
    under_way: str = ""
    """As in `Sighting`."""

    @property
    def exit_code(self) -> ExitCode:
        """The safest code over all reported saves, by their verdicts; 11 without a save."""
        if not self.saves:
            return ExitCode.NOTHING_TO_RESUME
        states = {save.state for save in self.saves}
        codes = {ExitCode.INCOMPLETE for save in self.saves if save.told_incomplete}
        codes |= {ExitCode.INCOMPLETE for node in self.nodes if node.told or not node.mark}
        if SaveState.COMPLETE in states or states == {SaveState.SAVING}:  # not judged yet
            codes.add(ExitCode.INCOMPLETE)
        unknown = {VerdictWord.UNREADABLE, VerdictWord.UNSTABLE, VerdictWord.UNSUPPORTED}
        for save in self.saves:
            if save.state is not SaveState.BAD:
                continue
            if save.word in unknown:
                codes.add(ExitCode.INCOMPLETE)
            else:
                codes.add(ExitCode.UNSAFE if save.word is VerdictWord.UNSAFE else ExitCode.DAMAGE)
        return safest(codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRule:
    """The conditions of a watch's events."""

    settle: int = 2
    """Polls without a change after which a save has come to rest."""
    patience: float | None = None
    """Seconds without a change after which an incomplete save is reported; None: three times the duration of a save."""
    again: float = 3600.0
    """Seconds after which a good save is read once more, or as soon as a newer one is good; 0: never."""
    seal: bool = False
    """Whether good saves are to be sealed."""
    rested: float | None = None
    """Seconds after which a file has come to rest by its age alone; None: only polls tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Read a save."""

    key: str
    fingerprint: str
    final: bool
    """Whether patience has ended: findings are reported even if a save in progress would have them."""
    cold: bool
    """Whether it was good before, and is read once more."""
    seal: bool = False
    """Whether it is to be sealed if it is good."""
    fresh: bool = False
    """Whether it was not good yet: its current state is what the trainer intended."""
    rewritten: bool = False
    """As in `KnownSave`: its records belong to another save of its name."""
    grown: bool = False
    """Whether files were added to those found good: its records were made too early."""
    beside: str = ""
    """As in `SeenSave`."""
    early: bool = False
    """Whether to read it only if it has left the memory: its time has not come yet."""
    good_ns: int | None = None
    """As in `KnownSave`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of reading a save."""

    request: Judge
    word: VerdictWord
    findings: tuple[Finding, ...]
    cached: bool | None = None
    """Whether most of it came from memory instead of the disk; None where the system does not say."""
    sealed: bool = False
    """Whether it is sealed now."""
    norm: float | None = None
    """Embedding local norm (sum of squares) at the save, if a threshold was given and the log shows one."""
    written_since: frozenset[str] = frozenset()
    """Paths of the files that were written since the save was good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent(Answered):
    """An event in a watched tree."""

    NOUN = "event"

    kind: EventKind
    subject: str
    """Its subject, to recognize duplicates: its key and the state of its files."""
    name: str | None
    """The save's; None if it is about none."""
    step: Step | None
    word: VerdictWord | None = None
    findings: tuple[Finding, ...] = ()
    cached: bool | None = None
    """As in `Judgement`."""
    sealed: bool = False
    root: str = ""
    """The tree, as the user would write it."""
    id: str = ""
    """32 hexadecimal digits, equal for duplicates."""
    at: float = 0.0
    """Seconds since 1970 of the report."""

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
    """Poll once and read everything available."""
    level: Level = Level.CHECKSUM
    seal: bool = False
    threshold: float | None = None
    """Embedding local norm (sum of squares) from which a save is unhealthy; None: go by the trainer's record alone."""
    logs: LogQuestion = LogQuestion()
    """Logs that show it. Without patterns: those in the output folder."""
    hook: tuple[str, ...] = ()
    """The command to run for each event, by its words; none: nothing is run."""
    max_rate: int | None = None
    """Bytes a second to read at most, on average; None: as fast as it goes."""
    metrics: str | None = None
    """The file in which Prometheus' node exporter looks for metrics; None: none is written."""
    listen: tuple[str, int] | None = None
    """Host and port of the metrics server; None: none."""
    environment: Mapping[str, str] | None = None
    """Of the process: for the state's place, and for hooks."""
    part: PartQuestion | None = None
    """Which part this machine keeps, and where, for a watch elsewhere that judges all of them; None: it judges here."""
