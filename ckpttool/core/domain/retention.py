"""Retention: which checkpoints may be deleted, and what happens to their files."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from ckpttool.core.domain.amounts import Amount, amount, size_only
from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, of_findings, safest, seen_in_part
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.pointer import PointerFix
from ckpttool.core.domain.question import GRACE, GRACE_SECONDS, MAX_AGE, PREFIX
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount, Step
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Rules for the checkpoints to keep.

    Nothing is ever deleted before `keep_last` newer checkpoints are proven good.
    """

    keep_last: Annotated[
        int,
        Option("--keep-last", "Keep the N newest good checkpoints.", "What stays", metavar="N", least=1),
    ]
    """Number of newest good checkpoints to keep; at least 1."""
    keep_every: Annotated[
        int | None,
        Option(
            "--keep-every",
            "Also keep the first good checkpoint at or after each multiple of STEPS.",
            "What stays",
            metavar="STEPS",
            least=1,
        ),
    ] = None
    """Interval in steps; the first good checkpoint at or after each multiple is kept."""
    keep_healthy: Annotated[
        int,
        Option(
            "--keep-healthy",
            "Also keep the N newest checkpoints recorded as healthy.",
            "What stays",
            metavar="N",
            least=0,
        ),
    ] = 0
    """Number of newest good checkpoints with recorded good health to keep."""
    keep_within: Annotated[
        float | None,
        Option(
            "--keep-within",
            "Also keep good checkpoints saved up to this long before the newest good one, such as 7d "
            "(a bare number is days).",
            "What stays",
            metavar="TIME",
            unit="d",
            into="s",
        ),
    ] = None
    """Time in seconds before the newest good checkpoint; good checkpoints saved since then are kept."""
    keep_hourly: Annotated[
        int,
        Option(
            "--keep-hourly",
            "Also keep the newest good checkpoint of each of the last N hours (UTC) that have one.",
            "What stays",
            metavar="N",
            least=0,
        ),
    ] = 0
    """Number of hours with a good checkpoint for which the newest one is kept."""
    keep_daily: Annotated[
        int,
        Option(
            "--keep-daily",
            "Also keep the newest good checkpoint of each of the last N days (UTC) that have one.",
            "What stays",
            metavar="N",
            least=0,
        ),
    ] = 0
    """Number of days with a good checkpoint for which the newest one is kept."""
    keep_weekly: Annotated[
        int,
        Option(
            "--keep-weekly",
            "Also keep the newest good checkpoint of each of the last N weeks (Monday to Sunday, UTC) that have one.",
            "What stays",
            metavar="N",
            least=0,
        ),
    ] = 0
    """Number of weeks with a good checkpoint for which the newest one is kept."""
    keep: Annotated[
        tuple[str, ...], Option("--keep", "Also keep this checkpoint; repeatable.", "What stays", metavar="NAME")
    ] = ()
    """Names of checkpoints to keep."""
    drop_abandoned: Annotated[
        bool, Option("--drop-abandoned", "Also delete the checkpoints of abandoned branches.", "What stays")
    ] = False
    """Whether to also delete abandoned branches."""
    prefix: Annotated[str | None, PREFIX] = None
    """Prefix of file names; checkpoints with other prefixes are kept."""

    @property
    def uses_times(self) -> bool:
        """Whether a rule depends on the times at which checkpoints were saved."""
        return self.keep_within is not None or bool(self.keep_hourly or self.keep_daily or self.keep_weekly)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOrder:
    """Order to prune a tree, with the retention policy and the checks before the prune."""

    apply: Annotated[
        bool, Option("--apply", "Make the changes; without this option, nothing is changed.", "What stays")
    ] = False
    """Whether to execute the plan; otherwise it is only shown."""
    level: Annotated[
        Level | None,
        Option(
            "--level",
            "How thoroughly to check the remaining checkpoints. Default: recorded checksums, else headers.",
            "Evidence",
        ),
    ] = None
    """Level at which to check the checkpoints that justify a deletion.

    None for every byte if there is a checksum to compare with, and otherwise headers.
    """
    grace: Annotated[float, GRACE] = GRACE_SECONDS
    """Age in seconds; if a shard is younger, a process is assumed to be writing to the tree."""
    wait: Annotated[
        float,
        Option(
            "--wait",
            "Wait up to this long for a save in progress, such as 10m (a bare number is minutes).",
            "What stays",
            metavar="TIME",
            unit="m",
            into="s",
            shown="",
        ),
    ] = 0.0
    """Maximum time in seconds to wait for a save in progress, or for another ckpttool that changes the tree."""
    trash_days: Annotated[
        float,
        Option(
            "--trash-days",
            "Keep deleted checkpoints in the trash for this long, such as 7d (a bare number is days).",
            "What stays",
            metavar="TIME",
            unit="d",
            shown="",
        ),
    ] = 0.0
    """Number of days for which deleted checkpoints stay in the trash."""
    max_age: Annotated[float | None, MAX_AGE] = None
    """Maximum age in seconds of an earlier check of an unchanged file; None to read everything."""


def _free(text: str) -> Amount:
    return amount("--free", text)


def _max_size(text: str) -> ByteCount:
    return size_only("--max-size", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Space to have after a prune. Only as much is deleted as it needs, oldest first."""

    free: Annotated[
        Amount | None,
        Option(
            "--free",
            "Delete only until this much is free on the disk, such as 2TiB or 10%, the oldest of all trees first. "
            "A quota that leaves less counts instead.",
            "What stays",
            metavar="SIZE",
            parse=_free,
            typed=str | None,
        ),
    ] = None
    """Space to have free on the disk of each tree, as by `df`; None for no aim."""
    max_size: Annotated[
        ByteCount | None,
        Option(
            "--max-size",
            "Delete only until all trees together have at most this size, as by du, the oldest of all trees first.",
            "What stays",
            metavar="SIZE",
            parse=_max_size,
            typed=str | None,
        ),
    ] = None
    """Size in bytes that all trees together may have; None for no aim."""

    @property
    def is_set(self) -> bool:
        """Whether there is an aim."""
        return self.free is not None or self.max_size is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far a prune reaches an aim."""

    aim: str
    """`free` or `max-size`."""
    of: str
    """The limit: `the disk`, `the quota of user 1000`, `all trees`."""
    nbytes: ByteCount
    """The aim in bytes."""
    before: int
    """Free space, or size, before the prune, in bytes."""
    after: int
    """Free space, or size, afterwards: as planned, or measured if the prune was carried out."""

    @property
    def missing(self) -> ByteCount:
        """Number of bytes that are missing, or too many."""
        return ByteCount(max(0, self.nbytes - self.after if self.aim == "free" else self.after - self.nbytes))


class Why(str, Enum):
    """Reason for keeping or deleting a checkpoint.

    Scripts rely on the values: values may be added, but never renamed.
    """

    LAST = "last"
    VERIFIED = "verified"
    """The checkpoint is among the newest with a matching checksum, and newer checkpoints have no checksum."""
    UNPROVEN = "unproven"
    """The checkpoint's checksum was not compared with its bytes, and too few newer checkpoints are proven."""
    HEALTHY = "healthy"
    EVERY = "every"
    WITHIN = "within"
    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    OLDEST = "oldest"
    """The checkpoint is the oldest good one, and fewer hours, days or weeks have a save than are to be kept."""
    TIME_UNKNOWN = "time-unknown"
    """The policy counts hours, days or weeks, and it is unknown when the checkpoint was saved."""
    NAMED = "named"
    NEWER = "newer"
    """The checkpoint is intact but not good (unhealthy, or on an abandoned branch), and too few newer ones are good."""
    NOT_WHOLE = "not-whole"
    DISPUTED = "disputed"
    """The checkpoint may be good.

    It contradicts another save and nothing shows which of them is damaged, or it is unreadable, or its step or run is
    unknown.
    """
    STEP_UNKNOWN = "step-unknown"
    NEEDS_RENAMES = "needs-renames"
    ABANDONED = "abandoned"
    OTHER_TRAINING = "other-training"
    UNKNOWN_FILES = "unknown-files"
    NOT_MOVED = "not-moved"
    """The layout forbids moving this save."""
    EVIDENCE = "evidence"
    """Without this checkpoint, the ranks, branch or header of another checkpoint would be judged differently."""
    ROOM = "room"
    """The checkpoint is superseded, but the requested space is reached without deleting it."""
    REPLACED = "replaced"
    """The checkpoint is superseded; this is the only reason for deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """Decision about one checkpoint."""

    checkpoint: Checkpoint
    why: tuple[Why, ...]
    """Rules that keep the checkpoint; only `REPLACED` if it is deleted."""
    because: str
    """Explanation in one sentence."""
    word: VerdictWord | None
    """Verdict on the checkpoint; None if it was not checked."""

    @property
    def goes(self) -> bool:
        """Whether the checkpoint may be deleted."""
        return self.why == (Why.REPLACED,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """Decisions about all checkpoints of a tree."""

    root: str
    layout: str
    policy: RetentionPolicy
    fates: tuple[Fate, ...]
    """Decisions, newest checkpoint first; the checkpoints of other training runs come last."""

    @property
    def going(self) -> tuple[Checkpoint, ...]:
        """Checkpoints to delete, newest first."""
        return tuple(fate.checkpoint for fate in self.fates if fate.goes)

    @property
    def good(self) -> tuple[Checkpoint, ...]:
        """Remaining checkpoints that are proven good to resume from, newest first."""
        proven = {Why.LAST, Why.VERIFIED, Why.UNPROVEN}
        return tuple(fate.checkpoint for fate in self.fates if proven.intersection(fate.why))

    @property
    def is_undecided(self) -> bool:
        """Whether good checkpoints may exist, although no checkpoint is known to be good."""
        return not self.good and any(
            {Why.DISPUTED, Why.STEP_UNKNOWN, Why.ABANDONED}.intersection(fate.why) for fate in self.fates
        )

    @property
    def intact(self) -> tuple[Checkpoint, ...]:
        """Remaining intact checkpoints: first the good ones, then the others, each newest first."""
        rest = [fate.checkpoint for fate in self.fates if not fate.goes and _NOT_GOOD.isdisjoint(fate.why)]
        good = self.good
        good_keys = {checkpoint.key for checkpoint in good}
        return (*good, *(checkpoint for checkpoint in rest if checkpoint.key not in good_keys))


_NOT_GOOD = frozenset(
    {
        Why.NOT_WHOLE,
        Why.DISPUTED,
        Why.STEP_UNKNOWN,
        Why.NEEDS_RENAMES,
        Why.ABANDONED,
        Why.OTHER_TRAINING,
        Why.NEWER,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One rename of a file, or of the complete folder of a save."""

    path: str
    """Current path, relative to the root; the path inside the trash is the same."""
    stamp: FileStamp
    """Expected stamp of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Files of one checkpoint that are moved together."""

    trash: str
    """Path of the checkpoint's trash folder, relative to the root."""
    moves: tuple[Move, ...]
    """Moves in order. After the first move, the checkpoint looks incomplete until all moves are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A file that was prepared next to its destination, and what happens to the existing file."""

    path: str
    """Path of the destination, relative to the tree's root."""
    temporary: str
    """Temporary path, in the same folder."""
    stamp: FileStamp
    """Stamp of the prepared file."""
    replaces: FileStamp | None = None
    """Stamp of the file at the destination; None if there is no file, or it may be overwritten."""
    retained: str | None = None
    """Backup path for the replaced file; None if it is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trashed:
    """A checkpoint that an earlier prune moved to the trash."""

    name: str
    """Name of the folder in the trash."""
    goes: bool
    """Whether the checkpoint has been in the trash long enough to be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Files of one checkpoint to delete on another machine or in an object store."""

    checkpoint: str
    """Name of the checkpoint."""
    host: str | None
    """Host name of the machine; None for an object store."""
    paths: tuple[str, ...]
    """Files in the order of deletion, relative to the root."""
    nbytes: ByteCount


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning(Answered):
    """The answer of `prune`: the plan and its result."""

    NOUN = "prune"

    plan: RetentionPlan
    order: PruneOrder
    fixes: tuple[PointerFix, ...]
    """Changes to records that name a checkpoint to delete."""
    trash: tuple[Trashed, ...]
    refusals: tuple[Finding, ...]
    """Reasons why nothing was changed."""
    resolved_from: str | None
    """Path that was used instead of the requested path, for display."""
    remarks: tuple[Finding, ...] = ()
    """Findings that prevented no change."""
    reached: tuple[Reached, ...] = ()
    """How far the requested space is reached, by all trees together; empty without an aim."""
    elsewhere: tuple[Elsewhere, ...] | None = None
    """Files to delete per host, oldest checkpoint first, if the tree is not a folder on this machine.

    They are never deleted from this machine. Empty if the plan is refused; None for a tree on this machine.
    """

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if the plan is valid, executed or not.

        A refusal, and a tree without a good checkpoint, have other codes.
        """
        findings = of_findings((*self.refusals, *self.remarks))
        if self.plan.good or seen_in_part(self.refusals):
            return findings
        nothing = ExitCode.INCOMPLETE if self.plan.is_undecided else ExitCode.NOTHING_TO_RESUME
        return safest([findings, nothing])

    @property
    def applied(self) -> bool:
        """Whether the plan was executed."""
        return self.order.apply and not self.refusals

    @property
    def freed(self) -> ByteCount | None:
        """Total size of the checkpoints to delete, in bytes; None if a size is unknown."""
        sizes = [checkpoint.nbytes for checkpoint in self.plan.going]
        return None if None in sizes else ByteCount(sum(size for size in sizes if size is not None))


class TrashAction(str, Enum):
    """Action on the trash.

    Scripts rely on the values: values may be added, but never renamed.
    """

    LIST = "list"
    RESTORE = "restore"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class InTrash:
    """One folder of the trash, with the checkpoint in it."""

    folder: str
    """Name of the folder, which consists of the time of the move and the checkpoint's name."""
    name: str
    """Name of the checkpoint."""
    prefix: str | None
    """Prefix of its file names, if several training runs may share the tree; None if unknown."""
    step: Step | None
    """Step of the checkpoint; None if the folder is not a checkpoint, or the step was not requested."""
    nbytes: ByteCount | None
    """Size of its shards in bytes; None if unknown."""
    since: float
    """Time of the move, in Unix seconds."""
    taken: bool
    """Whether the checkpoint is restored or deleted; in a list, whether it has reached the requested age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trash(Answered):
    """The answer of `trash`: the contents of a tree's trash, and the result of the command."""

    NOUN = "trash"

    root: str
    layout: str
    action: TrashAction
    apply: bool
    """Whether to execute the plan; otherwise it is only shown."""
    older_than: float | None
    """Minimum age of an entry in seconds; None if not requested."""
    content: tuple[InTrash, ...]
    """The entries before the command, oldest first."""
    findings: tuple[Finding, ...]
    """Findings of the command.

    For a list or a deletion, unknown facts or reasons that prevent the deletion; for a restored checkpoint, findings
    from its headers.
    """
    resolved_from: str | None
    """Path that was used instead of the requested path, for display."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if the contents are known, and restored checkpoints are intact according to their headers."""
        return of_findings(self.findings)

    @property
    def applied(self) -> bool:
        """Whether the plan was executed."""
        return self.apply  # an interrupted change is completed first; nothing else prevents the command

    @property
    def interrupted(self) -> bool:
        """Whether an interrupted change of the tree must be completed before anything is deleted."""
        return not self.apply and any(finding.code is Code.IN_PROGRESS for finding in self.findings)

    @property
    def taken(self) -> tuple[InTrash, ...]:
        """Checkpoints that are restored or deleted, oldest first."""
        return tuple(save for save in self.content if save.taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Answered):
    """The answer of `repair pointer`: the correct content of the trainer's records, and the result of the repair."""

    NOUN = "repair"

    root: str
    layout: str
    checkpoint: Checkpoint | None
    """Checkpoint that the records should name: the newest intact one, or the requested one; None if no such checkpoint
    exists.
    """
    fixes: tuple[PointerFix, ...]
    refusals: tuple[Finding, ...]
    apply: bool
    resolved_from: str | None
    read: int = 0
    """Number of records that were read; 0 if the layout has no such records, or there is no checkpoint."""
    able: int = 0
    """Number of the records that can name the checkpoint."""
    named: bool = False
    """Whether the user named the checkpoint."""
    prefix: str | None = None
    """Prefix that was requested."""
    grace: float = GRACE_SECONDS
    """Age in seconds; a younger shard is a sign of a save in progress."""
    is_sure: bool = True
    """Whether it is certain that no checkpoint is intact, if there is no checkpoint to name."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if the records are right, or would be with `--apply`."""
        if self.checkpoint is None:
            return ExitCode.NOTHING_TO_RESUME if self.is_sure else ExitCode.INCOMPLETE
        return of_findings(self.refusals)

    @property
    def applied(self) -> bool:
        """Whether the plan was executed."""
        return self.apply and not self.refusals
