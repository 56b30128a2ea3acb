"""Answer before a launch: go or no-go, and every reason with its location."""

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
from ckpttool.core.domain.question import ResumeQuestion, StartQuestion, TreeQuestion
from ckpttool.core.domain.settings import SafeFix
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode

if TYPE_CHECKING:
    from ckpttool.core.domain.plan import NoResumePoint


class Outcome(str, Enum):
    """Results of a check, best first."""

    PASSED = "passed"
    SKIPPED = "skipped"
    """There was nothing to check after an earlier check failed."""
    UNKNOWN = "unknown"
    """The check was impossible, so that neither a problem nor its absence is proven."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A finding, with its path relative to the working directory."""

    finding: Finding
    file: str | None = None
    """Path that can be opened from the working directory; None if no file is at fault."""

    @property
    def blocks(self) -> bool:
        """Return whether this reason prevents a launch."""
        return bool(blocking([self.finding]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check, with its findings."""

    name: str
    """Name of the check: `config`, `checkpoint`, `health`, `launch`, `start` or `disk`.

    If only configs were checked, it is the path of the config.
    """
    summary: str
    """Observation in one line."""
    reasons: tuple[Reason, ...] = ()
    """All findings, including notes, in the order of the checks."""
    allowed: tuple[Reason, ...] = ()
    """Findings that the config itself allows, so that they are not reasons."""
    stopped: ExitCode | None = None
    """Exit code of the error that made the check impossible; the error is also a reason."""
    skipped: bool = False
    unsure: bool = False
    """Whether the result is unknown although no finding prevents a launch, for example without recorded health."""

    @property
    def outcome(self) -> Outcome:
        """Result of the check, which is derived from the reasons."""
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
"""Priority of exit codes, safest first, as in a single answer.

Errors that stop other commands are one reason among others here, because a command that could not run has no answer.
"""


def exit_of(checks: Iterable[Check]) -> ExitCode:
    """Return 0 if every check passed, and otherwise the safest code of the checks."""
    codes = set()
    for check in checks:
        codes.add(check.stopped or of_findings(reason.finding for reason in check.reasons))
    return next((code for code in _STOPS_FIRST if code in codes), max(codes, default=ExitCode.OK))


class Reported(Answered):
    """Base class of answers that consist of checks and support all report formats."""

    __slots__ = ()

    headline: str
    """The answer in one line."""
    checks: tuple[Check, ...]
    view: View

    @property
    @abstractmethod
    def command(self) -> str:
        """Name of the command, as it is typed."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Path for findings that are not about a file."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if every check passed, and otherwise the safest code of the checks."""
        return exit_of(self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSaves:
    """Disk space that a training run will need, according to its config."""

    folder: str
    """Path of the save folder, existing or not."""
    inside: tuple[str, ...]
    """Subfolders of the checkpoint folder that receive the files, if the run saves there."""
    count: int
    """Number of further saves that must fit on the disk."""
    stays: str | None
    """Why no space will be freed automatically, as words for a remedy; None if that does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeed:
    """Size of the next saves, and the free space on their disk."""

    folder: str
    """Folder of the next saves, or its nearest existing parent."""
    saves: int
    """Number of additional saves that must fit."""
    save_bytes: int
    save_files: int
    free_bytes: int
    free_files: int | None
    """Number of free inodes; None if the file system does not count inodes."""
    unwritable: tuple[str, ...]
    """Folders without write permission for this user."""
    stays: str | None = None
    """The same as in `NextSaves`."""
    host: str | None = None
    """Host name of the machine with this disk; None if the disk belongs to this machine or is shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight(OfChoice, Answered):
    """Answer on whether a launch now would resume from the intended checkpoint."""

    NOUN = "preflight"

    config: str | None
    """Path of the config; None if the trainer's configs are not read."""
    root: str | None
    """Path of the checkpoint folder; None if there is no folder."""
    checks: tuple[Check, ...]
    decision: ResumePlan | NoResumePoint | None = None
    disk: DiskNeed | None = None
    resolved_from: str | None = None
    """Path that was used instead of the requested path, for display."""
    view: View = USUAL

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if every check passed, and otherwise the safest code of the checks."""
        return exit_of(self.checks)

    @property
    def chosen(self) -> ResumePlan | None:
        """The plan; None if there is no decision or no checkpoint was chosen."""
        return self.decision if isinstance(self.decision, ResumePlan) else None

    @property
    def go(self) -> bool:
        """Whether every check was made and nothing prevents a launch."""
        return all(check.outcome is Outcome.PASSED for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Preflight):
    """The preflight of a launch that was refused, so that nothing was written."""

    NOUN = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedConfig:
    """A config before and after fixing the settings that have only one right value."""

    path: str
    before: str
    """Complete text before the fixes; the next field has the text after them."""
    after: str
    fixes: tuple[SafeFix, ...]
    """Fixes in file order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint(Answered):
    """The answer of rules that check configs only."""

    NOUN = "preflight"

    checks: tuple[Check, ...]
    """One check per file, in the order of the arguments."""
    fixed: tuple[FixedConfig, ...] = ()
    """Files that were fixed and written before the rules were applied."""
    foreign: tuple[str, ...] = ()
    """YAML files that are not training configs, in folders or among files to skip."""
    view: View = USUAL
    """Display options."""
    command: str = "lint-config"
    """Name of the command in the heading of reports."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if every check passed, and otherwise the safest code of the checks."""
        return exit_of(self.checks)

    @property
    def go(self) -> bool:
        """Whether no file has a finding that prevents a launch."""
        return all(check.outcome is Outcome.PASSED for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightQuestion:
    """Question about a start, with the findings to accept."""

    config: str | None
    """Path of the config; None if the trainer's configs are not read."""
    tree: TreeQuestion = TreeQuestion()
    """Question about the tree, without the config, because the config is read as part of the answer."""
    choice: ResumeQuestion = ResumeQuestion()
    data: DataQuestion = DataQuestion()
    start: StartQuestion = StartQuestion()
    devices: int | None = None
    """Total number of devices that will be started; None if unknown."""
    strict: bool = False
    """Whether a rejected newer checkpoint stops the launch."""
    allowed: tuple[Row, ...] = ()
    """Findings that the user accepts, so that they become notes."""
    view: View = USUAL
    """Display options for the report."""
    load_checkpoint: str | None = None
    """Folder to which a tree from an object store was copied."""
