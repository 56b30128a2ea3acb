"""Chosen checkpoint, position of the data, and reasons against each newer checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import (
    NOT_SEEN,
    Code,
    Finding,
    Severity,
    blocking,
    seen_in_part,
    withheld,
    without_answer,
    worst,
)
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step, at_step, counted, lasting
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode

if TYPE_CHECKING:
    from ckpttool.core.domain.advice import SpikeAdvice, StopAdvice
    from ckpttool.core.domain.checkpoint import PartsGiven
    from ckpttool.core.domain.data_position import DataPosition
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import Placed


AS_CONFIGURED = "as configured"
"""Name of a start with the config that the user gave."""

ON_ITS_OWN = "on its own"
"""Name of a start without a config, and without a named checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A checkpoint that was not chosen, with all reasons against it."""

    checkpoint: Checkpoint
    reasons: tuple[Finding, ...]


MOST_REJECTED = 8
"""Maximum number of rejected checkpoints that are shown individually, newest first.

The JSON of `resolve` has all of them.
"""


class LostTimeSource(str, Enum):
    """Source of the duration of lost steps."""

    LOG = "log"
    """The times of the steps in the training log."""
    SAVES = "saves"
    """The times at which the files of two saves were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """Training time of the steps to redo."""

    seconds: float
    source: LostTimeSource
    pace: tuple[Step, Step] | None = None
    """Steps of the two saves whose times give the pace; None if the times of the lost steps themselves are known."""

    @property
    def words(self) -> str:
        """Return the time with its source, for people: `42 min (by file times)`."""
        by = "by the log" if self.source is LostTimeSource.LOG else "by file times"
        if self.pace is not None:
            by = f"at the pace of steps {self.pace[0]} to {self.pace[1]}, {by}"
        return f"{lasting(self.seconds)} ({by})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The checkpoint to load, with the cost of resuming from it."""

    checkpoint: Checkpoint
    step: Step
    """Actual global step of the checkpoint; a checkpoint with an unknown step is never chosen."""
    evidence: Level
    """Level at which all of its shards were checked."""
    verdict: VerdictWord
    """Result of the check: `verified` if checksums matched, `struct-ok` if there were no checksums."""
    lost_steps: int
    """Number of batches to redo, from this checkpoint to the furthest one on its lineage, intact or not.

    They are counted in batches of this checkpoint's size, and rounded up if the other checkpoint's size differs. If a
    log continues further, they are counted up to the log's last step.
    """
    lost_samples: int | None = None
    """Number of samples to redo; None if no batch size is known."""
    lost_time: LostTime | None = None
    """Duration of the lost steps; None if unknown, or if no steps are lost."""
    saved_ns: int | None = None
    """Time of the last write to a shard, from the files' mtimes, in nanoseconds since 1970; None if unknown."""
    rejected: tuple[Rejection, ...]
    """Newer checkpoints that were not chosen, and others that a reader might expect; newest first."""
    findings: tuple[Finding, ...]
    unlisted: tuple[str, ...] = ()
    """Folders of the tree that could not be listed, by path: each may contain a newer checkpoint."""

    @property
    def may_lose_more(self) -> bool:
        """Whether there may be a newer checkpoint with an unknown step, which `lost_steps` does not include."""
        return bool(self.unlisted) or any(rejection.checkpoint.step is None for rejection in self.rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResumePoint:
    """Result for a tree without a checkpoint to resume from."""

    root: str
    evidence: Level
    """Level that was requested."""
    rejected: tuple[Rejection, ...]
    findings: tuple[Finding, ...]
    advice: SpikeAdvice | StopAdvice | None = None
    """Advice on avoiding a spike or continuing after a stop, if requested."""
    is_named: bool = False
    """Whether only one checkpoint was checked, because the user named it."""
    in_trash: int = 0
    """Number of restorable checkpoints that prunes moved to the trash."""
    parts: PartsGiven | None = None
    """Parts that the decision is based on, if other machines recorded them; otherwise None."""

    @property
    def is_sure(self) -> bool:
        """Whether it is certain that there is no intact save, not even an unread one or one on another machine."""
        reasons = [reason for rejection in self.rejected for reason in rejection.reasons]
        if seen_in_part((*self.findings, *reasons)) or withheld(self.findings):
            return False
        undecided = {Code.RUN_MIXED, Code.ABANDONED_BRANCH}
        if any(finding.code in undecided and finding.severity is Severity.UNKNOWN for finding in self.findings):
            return False
        return not any(may_be_good(rejection.reasons) for rejection in self.rejected)

    @property
    def where_else(self) -> str | None:
        """Description of other places where a checkpoint may be found; None if there is no such place."""
        from shlex import quote

        if self.is_named:
            return f"no other checkpoint was checked: ckpttool resolve {quote(self.root)}"
        if not self.in_trash:
            return None
        are = "is" if self.in_trash == 1 else "are"
        return f"{counted(self.in_trash, 'checkpoint')} {are} in the trash: ckpttool trash list {quote(self.root)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshStart(NoResumePoint):
    """Result for a run that never completed a save, so that training starts from scratch."""

    ground: str
    """The state of the folder, for the end of a sentence: "does not exist"."""
    set_aside: tuple[str, ...] = ()
    """Names of unfinished saves that are not loaded."""
    logged: tuple[str, ...] = ()
    """Logs that were read, each of which ends before the first save."""
    trainer: str | None = None
    """Name of the trainer, as the config or an unfinished save shows it; None if unknown."""
    is_uncounted: bool = False
    """Whether starts from a checkpoint are counted, but this one cannot be."""


_NOT_KNOWN = frozenset(
    {
        Code.NOT_LOADABLE,
        Code.STEP_UNKNOWN,
        Code.STEP_DISAGREES,
        Code.DUPLICATE_CHECKPOINT,
        Code.RUN_MIXED,
        Code.UNSUPPORTED_FORMAT,
        *NOT_SEEN,
    }
)


def may_be_good(findings: Iterable[Finding]) -> bool:
    """Return whether a save may be intact, because it is unread, has an unknown step, or is in an undecided tie."""
    reasons = blocking(findings)
    return bool(reasons) and all(
        reason.is_tie
        or ((reason.code in _NOT_KNOWN or reason.code.leaves_open) and reason.severity is Severity.UNKNOWN)
        for reason in reasons
    )


class Outcome(str, Enum):
    """Result of a trainer's default start."""

    LOADS = "loads"
    STOPS = "stops"
    """The start ends, with or without an error."""
    SCRATCH = "scratch"
    """The trainer starts from random weights."""
    MIXES = "mixes"
    """The trainer loads parts of several saves."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Result of a trainer's default start: the checkpoint that it would load, and the outcome."""

    trainer: str
    """Name of the trainer in JSON."""
    title: str
    """Name of the trainer for people."""
    version: str | None
    """Version of the trainer; None if all known versions behave the same."""
    would_resume: str | None
    """Name of a checkpoint, or of a folder that is not a checkpoint.

    None if the start fails, begins with random weights, or loads different checkpoints per rank.
    """
    outcome: Outcome
    because: str
    """Reason for the choice and for the outcome, in one sentence."""
    older: str | None = None
    """Older field of `ckpttool/plan/1` with the same fact, from before documents covered every trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStart:
    """Result of a start with the current config, records and names, if no save is named explicitly."""

    simulation: Simulation | None
    """Result of the start; None if unknown, for the reason in `why`."""
    lead: str = AS_CONFIGURED
    """Name of the kind of start, for the beginning of a sentence."""
    why: str = ""
    by_script: bool = False
    """Whether the result is unknown because the training script decides, which cannot be checked before the start."""
    by_records: bool = False
    """Whether the result depends on the small records that `repair pointer` writes next to the saves."""
    data: str | None = None
    """Description of how the data position would differ from the plan; None if it does not differ or is unknown."""
    lacks: str | None = None
    """Description of the parts of the save that are not loaded, with the consequence; None if all parts are loaded."""
    line: int | None = None
    """Line number of the config setting that decides; None if no setting decides."""
    mend: str | None = None
    """Change to the config that makes the start load the chosen save, for the end of a sentence."""
    in_the_way: str | None = None
    """Path in the tree that must be moved out of its folder, because it stops both this start and a launch."""
    only_in: str | None = None
    """Folder in which the start must run, because a relative path leads to the tree only from there."""

    def takes(self, name: str) -> bool:
        """Return whether the start loads a save with this name and continues from it."""
        simulation = self.simulation
        goes_on = simulation is not None and simulation.outcome in {Outcome.LOADS, Outcome.UNKNOWN}
        return goes_on and simulation is not None and simulation.would_resume == name and not (self.data or self.lacks)

    @property
    def is_known(self) -> bool:
        """Whether the result of the start is known."""
        simulation = self.simulation
        return simulation is not None and not (
            simulation.outcome is Outcome.UNKNOWN and simulation.would_resume is None
        )

    @property
    def reason(self) -> str:
        """Reason for the result or, if it is unknown, why it is unknown."""
        if self.data is not None:
            return self.data
        if self.lacks is not None and self.simulation is not None and self.simulation.outcome is Outcome.LOADS:
            return self.lacks
        return self.why if self.simulation is None else self.simulation.because

    def deed(self, chosen: Checkpoint) -> str:
        """Describe the result as a clause that follows the name of the start.

        Args:
            chosen: The checkpoint that the start should load.
        """
        simulation, instead = self.simulation, f"{at_step(chosen.step)} ({chosen.name})"
        if simulation is None or not self.is_known:
            return "would load an unknown checkpoint"
        if simulation.outcome is Outcome.SCRATCH:
            return f"would start at step 0 and not resume from {instead}"
        if simulation.outcome is Outcome.MIXES:
            return f"would load parts of several checkpoints, not {instead}"
        if simulation.would_resume is None:
            return f"would stop without loading {instead}"
        ending = " and then stop" if simulation.outcome is Outcome.STOPS else ""
        if simulation.would_resume != chosen.name:
            return f"would load {simulation.would_resume}{ending}, not {instead}"
        if self.data is not None:
            ending = ", but continue at another data position"
        elif self.lacks is not None and not ending:
            ending = " without a part of it"
        return f"would load {chosen.name}{ending}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """Plan for resuming from the chosen checkpoint."""

    root: str
    point: ResumePoint
    load: LoadSettings
    data: DataPosition
    """Position at which the data continue."""
    next_step: Step
    """First global step of the resumed run, counted in batches of the new size."""
    findings: tuple[Finding, ...] = ()
    """Findings about the resume, such as counters that the trainer will set wrongly, or contradicting settings."""
    advice: SpikeAdvice | StopAdvice | None = None
    """Advice on avoiding a spike or continuing after a stop, if requested; `data` follows the advice."""
    placement: tuple[Placed, ...] = ()
    """Machine on which each rank will start, as the machines report it; empty if unknown."""
    copies: tuple[str, ...] = ()
    """Files that must be copied to a disk before a trainer can load them, relative to `root`; empty for a tree on disk.
    """
    parts: PartsGiven | None = None
    """Parts that the decision is based on, if other machines recorded them; otherwise None."""
    or_start: bool = False
    """Whether a start from scratch was also allowed, so that documents name the kind of start."""


def exit_of(decision: ResumePlan | NoResumePoint, *, strict: bool) -> ExitCode:
    """Return the exit code of a decision.

    Return 0 if a checkpoint was chosen; with `strict`, only if no newer checkpoint was rejected for damage. Return 0
    also if the run starts from scratch.

    Return 10 if the choice loses more than allowed, or a rank would start on a machine without its files.

    Return 14 if a requested log could not be read to its end, or contained no step, so that the choice ignores the log.
    """
    match decision:
        case FreshStart():
            return ExitCode.OK
        case NoResumePoint():
            reasons = [reason for rejection in decision.rejected for reason in rejection.reasons]
            if worst([*reasons, *decision.findings]) is Severity.UNSAFE:
                return ExitCode.UNSAFE
            return ExitCode.NOTHING_TO_RESUME if decision.is_sure else ExitCode.INCOMPLETE
        case ResumePlan():
            if (strict and decision.point.rejected) or any(_is_wrong_start(finding) for finding in decision.findings):
                return ExitCode.DAMAGE
            return ExitCode.INCOMPLETE if without_answer(decision.findings) else ExitCode.OK


def _is_wrong_start(finding: Finding) -> bool:
    """Return whether a start from the chosen checkpoint would be wrong, although the checkpoint is intact."""
    codes = {Code.TOO_MUCH_LOST, Code.SHARD_ELSEWHERE}
    return finding.code in codes and finding.severity in {Severity.SUSPECT, Severity.DAMAGE}


class OfChoice(ABC):
    """Base class of answers that choose a checkpoint."""

    __slots__ = ()

    @property
    @abstractmethod
    def chosen(self) -> ResumePlan | None:
        """The plan; None if no checkpoint was chosen."""

    @property
    def name(self) -> str | None:
        """Name of the chosen checkpoint; None if no checkpoint was chosen."""
        return None if self.chosen is None else self.chosen.point.checkpoint.name

    @property
    def step(self) -> Step | None:
        """Global step of the chosen checkpoint; None if no checkpoint was chosen."""
        return None if self.chosen is None else self.chosen.point.step

    @property
    def data_skip_steps(self) -> int | None:
        """Number of batches of the new global batch size that the data loader skips; None if it skips none."""
        from ckpttool.core.domain.data_position import skip_of  # not needed for a scan

        skip = None if self.chosen is None else skip_of(self.chosen.data)
        return None if skip is None else skip.batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution(OfChoice, Answered):
    """The answer of `resolve`, with its question."""

    NOUN = "plan"

    decision: ResumePlan | NoResumePoint
    simulation: Simulation | None = None
    """Result of the trainer's default start, if requested."""
    strict: bool = False
    """Whether a rejected newer checkpoint has its own exit code."""
    now: float | None = None
    """Reference time for the age of the checkpoint, in seconds since 1970; None if the age is not shown."""
    view: View = USUAL

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the decision."""
        return exit_of(self.decision, strict=self.strict)

    @property
    def chosen(self) -> ResumePlan | None:
        """The plan; None if no checkpoint was chosen."""
        return self.decision if isinstance(self.decision, ResumePlan) else None
