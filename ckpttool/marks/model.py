"""Marks on saves, and the answer of `mark`."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Finding, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.question import LogQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode, UsageError


class MarkKind(str, Enum):
    """The judgement of a mark."""

    BAD = "bad"
    GOOD = "good"
    CLEARED = "cleared"
    """No judgement: the mark removes an earlier one, which stays in the folder."""


class MarkState(str, Enum):
    """Whether a mark counts for a save of the tree."""

    COUNTS = "counts"
    STALE = "stale"
    """The files of the save were written again, so the mark is about an earlier save with the same names."""
    UNKNOWN = "unknown"
    """The files differ in their times, and their content could not be compared."""
    ABSENT = "absent"
    """The tree has none of the files: the save was deleted or renamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A file of a marked save, by which the save is recognized."""

    path: str
    """Path relative to the root."""
    size: int
    """Size in bytes."""
    modified_ns: int | None
    """Time of the last write, in nanoseconds since 1970; None if the storage has no such time."""
    sample: str
    """xxh3-128 of three pieces of the content: the beginning, the middle and the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One mark, as recorded."""

    kind: MarkKind
    reason: str | None
    by: str
    """User and host, such as `alice@node-1`."""
    at: str
    """Time of the mark in UTC, such as `2026-11-20T03:00:00Z`."""
    checkpoint: str
    """Name of the save when it was marked."""
    step: Step | None
    witnesses: tuple[Witness, ...]
    """At most `MOST_WITNESSES` files, spread over the save."""
    is_automatic: bool = False
    """Whether ckpttool set the mark itself, after failed starts."""

    @property
    def author(self) -> str:
        """User and host or, for a mark that ckpttool set itself, ckpttool for them."""
        return f"ckpttool for {self.by}" if self.is_automatic else self.by

    @property
    def seconds(self) -> float:
        """Time of the mark in Unix seconds."""
        from datetime import datetime  # only failed starts need it

        return datetime.fromisoformat(self.at.replace("Z", "+00:00")).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkFile:
    """A file in the folder of marks."""

    path: str
    """Path relative to the root."""
    label: str
    """Beginning of its name, which all marks of one save share."""
    number: int
    """Number of the mark among those of the save, from 1; the highest number counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedSave:
    """The mark of a save, and whether it counts."""

    name: str
    """Name of the save in the tree or, if it is absent, when it was marked."""
    mark: Mark
    path: str
    """Path of the mark, relative to the root."""
    state: MarkState

    def counts_as(self, kind: MarkKind) -> bool:
        """Return whether the mark counts and is of this kind."""
        return self.state is MarkState.COUNTS and self.mark.kind is kind


LONGEST_REASON = 500
"""Maximum number of characters of a reason, which tables show in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkQuestion:
    """The requested mark; without one, the marks are only listed."""

    name: str | None = None
    """Name of the save to mark."""
    kind: MarkKind | None = None
    reason: str | None = None
    after_failed_starts: int | None = None
    """Number of failed starts in a row after which their save is marked as bad; None if the user names the save."""
    logs: LogQuestion = LogQuestion()
    """The logs that show the starts. Default: those near the tree."""
    dry_run: bool = False

    @property
    def text(self) -> str | None:
        """The reason without surrounding space; None if it is empty."""
        return (self.reason or "").strip() or None

    def assert_consistent(self) -> None:
        """Check that a mark has a save, and a reason that can be shown.

        Raises:
            UsageError: The reason is missing or too long.
        """
        if self.kind is MarkKind.BAD and self.text is None:
            raise UsageError("--bad needs a reason, such as --bad 'loss diverged after it'")
        if self.text is not None and self.text.startswith("-"):
            raise UsageError(f"the reason begins with -: {self.text}; is the reason missing?")
        if self.reason is not None and len(self.reason) > LONGEST_REASON:
            raise UsageError(f"the reason has {len(self.reason)} characters; at most {LONGEST_REASON} are recorded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks(Answered):
    """The answer of `mark`: the marks of a tree, after the change if one was requested."""

    NOUN = "marks"

    root: str
    layout: str
    marks: tuple[MarkedSave, ...]
    """The newest mark of each save, in the order of the saves, without cleared ones; then those of absent saves."""
    written: Mark | None = None
    """The mark that this command wrote, or would write in a dry run; None if nothing changes."""
    path: str | None = None
    """Path of that mark, relative to the root."""
    is_dry_run: bool = False
    unchanged: str | None = None
    """Why a requested mark was not written, as a sentence; None if it was written, or none was requested."""
    findings: tuple[Finding, ...] = ()
    resolved_from: str | None = None
    """Path that was used instead of the requested path, for display."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if the marks could be read, and a requested mark is in place."""
        return of_findings(self.findings)
