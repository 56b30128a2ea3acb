"""The answer before a launch: go or no-go, and every reason with its location."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.finding import Finding, Row, Severity, blocking, of_findings, worst
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.plan import OfChoice, ResumePlan
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from ckpttool.core.domain.settings import SafeFix
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode

if TYPE_CHECKING:
    from ckpttool.core.domain.plan import NoResumePoint


class Outcome(str, Enum):
    """The result of one check, best first."""

    PASSED = "passed"
    SKIPPED = "skipped"
    """After an earlier check, there was nothing left to check."""
    UNKNOWN = "unknown"
    """The check was impossible: there is proof neither of a problem nor of its absence."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A finding, with its path relative to the working directory."""

    finding: Finding
    file: str | None = None
    """A path that can be opened from the working directory; None if no file is at fault."""

    @property
    def blocks(self) -> bool:
        """Return whether this reason prevents a launch."""
        return bool(blocking([self.finding]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked."""

    name: str
    """`config`, `checkpoint`, `health`, `launch`, `start`, `disk`; or the config file, if only configs were checked."""
    summary: str
    """The observation, in one line."""
    reasons: tuple[Reason, ...] = ()
    """All findings, including notes, in the order of the checks."""
    allowed: tuple[Reason, ...] = ()
    """Findings that the config itself allows, which are not reasons."""
    stopped: ExitCode | None = None
    """The exit code of the error that made the check impossible, which is also a reason."""
    skipped: bool = False
    unsure: bool = False
    """Whether the result is unknown although no finding prevents a launch, for example because no health is
    recorded."""

    @property
    def outcome(self) -> Outcome:
        """The result, which is derived from the reasons and not stored separately."""
        if self.skipped:
            return Outcome.SKIPPED
        gravest = worst(reason.finding for reason in self.reasons)
        if gravest is Severity.NOTE:
            return Outcome.PASSED
        return Outcome.UNKNOWN if gravest is Severity.UNKNOWN else Outcome.FAILED


_STOPS_FIRST = (
    ExitCode.UNSAFE,
    ExitCode.USAGE,
    ExitCode.UNKNOWN_LAYOUT,
    ExitCode.NOTHING_TO_RESUME,
    ExitCode.DAMAGE,
    ExitCode.INCOMPLETE,
)
"""The safest code first, as in a single answer. Errors that stop another command are only one reason among others here:
a command that could not run has no answer."""


def exit_of(checks: Iterable[Check]) -> ExitCode:
    """Return 0 if every check passed, otherwise the safest of the checks' codes."""
    codes = set()
    for check in checks:
        codes.add(check.stopped or of_findings(reason.finding for reason in check.reasons))
    return next((code for code in _STOPS_FIRST if code in codes), max(codes, default=ExitCode.OK))


class Reported(Answered):
    """An answer that consists of checks and has all formats of a report; `Preflight` and `Lint` have them as well."""

    __slots__ = ()

    headline: str
    """The answer in one line."""
    checks: tuple[Check, ...]
    view: View

    @property
    @abstractmethod
    def command(self) -> str:
        """The words of its command."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Path for findings that are not about a file."""

    @property
    def exit_code(self) -> ExitCode:
        """0 if every check passed, else the safest of the codes of the checks."""
        return exit_of(self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSaves:
    """The disk space that a training run will need, according to its config."""

    folder: str
    """The save folder, existing or not."""
    inside: tuple[str, ...]
    """Subfolders of the checkpoint folder that receive the files, if the run saves there."""
    count: int
    """Number of further saves that must fit."""
    stays: str | None
    """Why no space will be freed automatically, in words for a remedy; None if that is not relevant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeed:
    """The size of the next saves, and the free space."""

    folder: str
    """The folder that the next saves will go to, or its nearest existing parent."""
    saves: int
    """Number of saves that must fit in addition."""
    save_bytes: int
    save_files: int
    free_bytes: int
    free_files: int | None
    """None if the file system does not count inodes."""
    unwritable: tuple[str, ...]
    """Folders that this user may not write to."""
    stays: str | None = None
    """The same as in `NextSaves`."""
    host: str | None = None
    """The machine with this disk, if there are several; None if the disk belongs to this machine or is shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight(OfChoice, Answered):
    """Whether a launch now would resume from the intended checkpoint."""

    NOUN = "preflight"

    config: str | None
    """None if the trainer's configs are not read."""
    root: str | None
    """The checkpoint folder; None if there is no folder."""
    checks: tuple[Check, ...]
    decision: ResumePlan | NoResumePoint | None = None
    disk: DiskNeed | None = None
    resolved_from: str | None = None
    """The path used instead of the requested path, for display."""
    view: View = USUAL

    @property
    def exit_code(self) -> ExitCode:
        """0 if every check passed, otherwise the safest of the checks' codes."""
        return exit_of(self.checks)

    @property
    def chosen(self) -> ResumePlan | None:
        """The decision, if there is one and it is a plan."""
        return self.decision if isinstance(self.decision, ResumePlan) else None

    @property
    def go(self) -> bool:
        """True only if every check was made and nothing prevents a launch."""
        return all(check.outcome is Outcome.PASSED for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Preflight):
    """The preflight that stopped a launch: nothing was written."""

    NOUN = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedConfig:
    """A config before and after correcting the settings that have only one right value."""

    path: str
    before: str
    """The complete text, as in the next field."""
    after: str
    fixes: tuple[SafeFix, ...]
    """In file order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint(Answered):
    """The findings of rules about configs alone."""

    NOUN = "preflight"

    checks: tuple[Check, ...]
    """One check per file, in the order of the arguments."""
    fixed: tuple[FixedConfig, ...] = ()
    """The files fixed and written before the rules were applied."""
    foreign: tuple[str, ...] = ()
    """YAML files in folders, or files to be skipped, that are not training configs."""
    view: View = USUAL
    """The view for display."""
    command: str = "lint-config"
    """The command name in the heading of reports."""

    @property
    def exit_code(self) -> ExitCode:
        """0 if every check passed, otherwise the safest of the checks' codes."""
        return exit_of(self.checks)

    @property
    def go(self) -> bool:
        """True if no file has a finding that prevents a launch."""
        return all(check.outcome is Outcome.PASSED for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightQuestion:
    """The start to check, and the findings to accept."""

    config: str | None
    """None if the trainer's configs are not read."""
    tree: TreeQuestion = TreeQuestion()
    """The question about the tree, without the config, which is read as part of the answer."""
    choice: ResumeQuestion = ResumeQuestion()
    data: DataQuestion = DataQuestion()
    devices: int | None = None
    """Total number of devices to be started; None if unknown."""
    strict: bool = False
    """Whether a newer checkpoint that was not chosen stops the launch."""
    allowed: tuple[Row, ...] = ()
    """Findings that the user has seen and accepts, and which become notes."""
    view: View = USUAL
    """The view for displaying the report."""
    load_checkpoint: str | None = None
    """The folder to which a tree of an object store was copied."""
