"""The chosen checkpoint, the position of the data, and the reasons against each newer checkpoint."""

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
"""Description of a start with the config that the user gave."""

ON_ITS_OWN = "on its own"
"""Description of a start without a config, and without a named checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A checkpoint that was not chosen, with every reason against it."""

    checkpoint: Checkpoint
    reasons: tuple[Finding, ...]


MOST_REJECTED = 8
"""Rejected checkpoints that are shown individually, newest first; the JSON of `resolve` has all of them."""


class LostTimeSource(str, Enum):
    """The source of the duration of lost steps."""

    LOG = "log"
    """The times of the steps in the training log."""
    SAVES = "saves"
    """The times at which the files of two saves were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """The training time of the steps to redo."""

    seconds: float
    source: LostTimeSource
    pace: tuple[Step, Step] | None = None
    """The steps of the two saves that give the pace; None if the times of the lost steps themselves are known."""

    @property
    def words(self) -> str:
        """The time for people, with its source: `42 min (by file times)`."""
        by = "by the log" if self.source is LostTimeSource.LOG else "by file times"
        if self.pace is not None:
            by = f"at the pace of steps {self.pace[0]} to {self.pace[1]}, {by}"
        return f"{lasting(self.seconds)} ({by})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The checkpoint to load."""

    checkpoint: Checkpoint
    step: Step
    """The checkpoint's true global step; a checkpoint with an unknown step is never chosen."""
    evidence: Level
    """How thoroughly all of its shards were checked."""
    verdict: VerdictWord
    """The result: `verified` if checksums matched, `struct-ok` if there were none."""
    lost_steps: int
    """Batches between this checkpoint and the furthest one on its lineage, intact or not. They are the work to redo.

    In batches of this checkpoint's size, rounded up if the other checkpoint's size differs. If a log continues further,
    up to the log's last step.
    """
    lost_samples: int | None = None
    """The same in samples; None if no batch size is known."""
    lost_time: LostTime | None = None
    """How long these steps took; None if unknown, or if no steps are lost."""
    saved_ns: int | None = None
    """When the last of its shards was written, from the files' mtimes, in nanoseconds since 1970; None if unknown."""
    rejected: tuple[Rejection, ...]
    """Newest first: the checkpoints that a reader might have expected."""
    findings: tuple[Finding, ...]

    @property
    def may_lose_more(self) -> bool:
        """Whether a newer checkpoint has an unknown step, so that `lost_steps` may not count it."""
        return any(rejection.checkpoint.step is None for rejection in self.rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResumePoint:
    """The tree has no checkpoint to resume from."""

    root: str
    evidence: Level
    """The requested level."""
    rejected: tuple[Rejection, ...]
    findings: tuple[Finding, ...]
    advice: SpikeAdvice | StopAdvice | None = None
    """The way to avoid a spike or to continue after a stop, if requested."""
    is_named: bool = False
    """Whether only one named checkpoint was checked."""
    in_trash: int = 0
    """Number of checkpoints that prunes moved to the trash and that can be restored."""
    parts: PartsGiven | None = None
    """The parts of its evidence, if other machines recorded them."""

    @property
    def is_sure(self) -> bool:
        """Whether it is certain that no intact save exists, among the unread saves or on another machine."""
        reasons = [reason for rejection in self.rejected for reason in rejection.reasons]
        if seen_in_part((*self.findings, *reasons)) or withheld(self.findings):
            return False
        undecided = {Code.RUN_MIXED, Code.ABANDONED_BRANCH}
        if any(finding.code in undecided and finding.severity is Severity.UNKNOWN for finding in self.findings):
            return False
        return not any(may_be_good(rejection.reasons) for rejection in self.rejected)

    @property
    def where_else(self) -> str | None:
        """Describe the other places where a checkpoint may be found; None if no such place exists."""
        from shlex import quote

        if self.is_named:
            return f"no other checkpoint was checked: ckpttool resolve {quote(self.root)}"
        if not self.in_trash:
            return None
        are = "is" if self.in_trash == 1 else "are"
        return f"{counted(self.in_trash, 'checkpoint')} {are} in the trash: ckpttool trash list {quote(self.root)}"


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
    """Return whether a save may be intact: unread, of unknown step, or in an undecided tie."""
    reasons = blocking(findings)
    return bool(reasons) and all(
        reason.is_tie or (reason.code in _NOT_KNOWN and reason.severity is Severity.UNKNOWN) for reason in reasons
    )


class Outcome(str, Enum):
    """The result of a trainer's default start, whether it chooses a save or not."""

    LOADS = "loads"
    STOPS = "stops"
    """The start ends, with an error or silently."""
    SCRATCH = "scratch"
    """The trainer starts from random weights."""
    MIXES = "mixes"
    """The trainer loads parts of several saves."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The checkpoint that the trainer would load by default, and the outcome."""

    trainer: str
    """The trainer's name in JSON."""
    title: str
    """The trainer's name for people."""
    version: str | None
    """None if all known versions of the trainer behave the same."""
    would_resume: str | None
    """Name of a checkpoint, or of a folder that is not a checkpoint; None if the start fails, begins with random
    weights, or loads different checkpoints per rank."""
    outcome: Outcome
    because: str
    """One sentence: the reason for the choice and for the outcome."""
    older: str | None = None
    """An older field of `ckpttool/plan/1` with the same fact, from before documents covered every trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStart:
    """The result of a start with the current config, records and names, if no save is named explicitly."""

    simulation: Simulation | None
    """None if unknown, for the reason in `why`."""
    lead: str = AS_CONFIGURED
    """The kind of start, for the beginning of a sentence."""
    why: str = ""
    by_script: bool = False
    """Whether the result is unknown because the training script decides, which cannot be checked before the start."""
    by_records: bool = False
    """Whether the result depends on the small records that `repair pointer` writes next to the saves."""
    data: str | None = None
    """In words, how the start's data position would differ from the plan; None if it does not differ or is unknown."""
    lacks: str | None = None
    """The parts of the save that the start leaves out, and the consequence, in words; None if it leaves nothing out."""
    line: int | None = None
    """Line of the config setting that decides."""
    mend: str | None = None
    """The change to the config that makes the start load the chosen save, for the end of a sentence."""
    in_the_way: str | None = None
    """A path in the tree that must be moved out of its folder first, because it stops this start and a launched one."""
    only_in: str | None = None
    """The folder in which the start must run, because a relative path leads into the tree only from there."""

    def takes(self, name: str) -> bool:
        """Return whether the start loads a save of this name, and continues after this save."""
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
        """The reason for the result, or why it is unknown."""
        if self.data is not None:
            return self.data
        if self.lacks is not None and self.simulation is not None and self.simulation.outcome is Outcome.LOADS:
            return self.lacks
        return self.why if self.simulation is None else self.simulation.because

    def deed(self, chosen: Checkpoint) -> str:
        """Describe the result, in words that follow the start's name.

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
    """Everything a launch needs."""

    root: str
    point: ResumePoint
    load: LoadSettings
    data: DataPosition
    """The position where the data continue."""
    next_step: Step
    """First global step of the resumed run, counted in batches of the new size."""
    findings: tuple[Finding, ...] = ()
    """Findings about the resume: counters that the trainer will set wrongly, contradicting settings."""
    advice: SpikeAdvice | StopAdvice | None = None
    """The way to avoid a spike or to continue after a stop, if requested; `data` follows it."""
    placement: tuple[Placed, ...] = ()
    """The machine on which each rank will start, as the machines report it; empty if unknown."""
    copies: tuple[str, ...] = ()
    """Files that have to be copied to a disk before a trainer can load them, relative to `root`; empty if the tree is
    on a disk."""
    parts: PartsGiven | None = None
    """The parts of its evidence, if other machines recorded them."""


def exit_of(decision: ResumePlan | NoResumePoint, *, strict: bool) -> ExitCode:
    """Return 0 if a checkpoint was chosen; with `strict`, only if no newer checkpoint was rejected for damage.

    Return 10 if the choice loses more than allowed, or a rank would start on a machine without its files.

    Return 14 if a requested log could not be read to its end, or showed no step, so that the choice ignores the log.
    """
    match decision:
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
    """Return whether starting from the chosen checkpoint is wrong, even though it is intact."""
    codes = {Code.TOO_MUCH_LOST, Code.SHARD_ELSEWHERE}
    return finding.code in codes and finding.severity in {Severity.SUSPECT, Severity.DAMAGE}


class OfChoice(ABC):
    """Common base of answers that choose a checkpoint."""

    __slots__ = ()

    @property
    @abstractmethod
    def chosen(self) -> ResumePlan | None:
        """The plan to resume from the chosen checkpoint; None if no checkpoint was chosen."""

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
        """Batches of the new global batch size that the data loader skips; None if no batches are skipped."""
        from ckpttool.core.domain.data_position import skip_of  # a scan does not choose a checkpoint

        skip = None if self.chosen is None else skip_of(self.chosen.data)
        return None if skip is None else skip.batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution(OfChoice, Answered):
    """The decision of `resolve`, with its question."""

    NOUN = "plan"

    decision: ResumePlan | NoResumePoint
    simulation: Simulation | None = None
    """The trainer's own choice, if requested."""
    strict: bool = False
    """Whether a rejected newer checkpoint has its own exit code."""
    now: float | None = None
    """Seconds since 1970, the reference for the age of the chosen checkpoint; None if the age is not shown."""
    view: View = USUAL

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the decision."""
        return exit_of(self.decision, strict=self.strict)

    @property
    def chosen(self) -> ResumePlan | None:
        """The decision, if it is a plan."""
        return self.decision if isinstance(self.decision, ResumePlan) else None
