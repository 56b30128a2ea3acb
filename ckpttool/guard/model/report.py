"""The report on a guarded training run."""

from __future__ import annotations

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.errors import ExitCode
from ckpttool.guard.model.attribution import Attribution, Causes
from ckpttool.guard.model.capture import CaptureRow
from ckpttool.health.model.reading import LogReading


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedUpdate:
    """An update that was dropped, or would have been dropped in watch mode."""

    step: Step
    kind: str
    """`skip`, `spike` or `nonfinite`."""
    norm: float | None
    """Norm of all gradients."""
    ranks: tuple[Rank, ...]
    """The ranks whose numbers were the reason, if known."""
    message: str
    """The reason in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTold:
    """A captured step, as reported in events."""

    step: Step
    path: str
    """Path of its folder, as the training process recorded it."""
    here: str
    """Path of its folder relative to the event file, which may have been moved or copied since."""
    verdict: str | None
    """`transient` if the step was finite when recomputed. None if only a replay decides."""
    culprits: tuple[Rank, ...]
    """Ranks whose own numbers were not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTold:
    """A strike, a wrong product, or replicas that differ, as reported in events."""

    step: Step
    rank: Rank | None
    """The rank, or None if it is unknown."""
    since_step: Step | None
    """For a strike, the step of its first abnormal value."""
    message: str
    """One sentence, or the known facts about the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """The events of one rank. Steps that were repeated after a restart count again."""

    rank: Rank
    host: str
    """Host of the rank's last process."""
    starts: int
    """Number of processes that wrote events."""
    first_step: Step | None
    last_step: Step | None
    """The last step in the rank's events."""
    steps: int
    applied: int
    dropped: int
    overflows: int
    """Number of updates that a loss scaler skipped. They count as neither applied nor dropped."""
    captures: int
    capture_failures: int
    strikes: int
    abnormal_products: int
    disagreements: int
    saves: int
    failed_saves: int
    last_save_failed: bool
    save_error: str | None
    """Step and error of the last save that failed, or None if no save failed."""
    guard_errors: int
    switched_off: tuple[str, ...]
    """Parts of the guard that were switched off."""
    lost_lines: int
    """Number of events that could not be written."""
    overhead: float | None
    """The guard's mean share of a step, or None if it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReport(Answered):
    """The events of a guarded run, and the next action.

    All ranks make the same decisions, so most numbers apply to any rank.
    """

    NOUN = "guard-report"

    ranks: tuple[RankReport, ...]
    """The ranks in ascending order."""
    world_size: int | None
    """The number of ranks, or None if no file contains it."""
    is_watching: bool
    """Whether an update would have been dropped but was not."""
    switched_on: tuple[str, ...]
    """How the guard was switched on: `code`, or the name of an environment variable. Starts may differ."""
    stopped_at: Step | None
    """Step at which too many consecutive updates were dropped, if the run has not continued since."""
    drops: tuple[DroppedUpdate, ...]
    """The first dropped updates, by step."""
    captures: tuple[CaptureTold, ...]
    in_a_row: tuple[CaptureRow, ...]
    """Series of two or more consecutive captures with the same weights."""
    strikes: tuple[FaultTold, ...]
    abnormal_products: tuple[FaultTold, ...]
    disagreements: tuple[FaultTold, ...]
    alarms: tuple[str, ...]
    """Alarms as sentences."""
    forgotten: tuple[str, ...]
    """State that was lost at a resume, as sentences."""
    errors: tuple[str, ...]
    """Errors in the guard itself, with the first error of each part."""
    attributions: tuple[Attribution, ...]
    """The suspicious steps with their causes, by step."""
    causes: tuple[Causes, ...]
    """The number of each cause by host and rank, with the most urgent causes first."""
    next: tuple[tuple[str, ...], ...]
    """Suggested commands as lists of words, the most urgent first."""
    reading: LogReading

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 10 if the run needs attention: a stop, a strike, a wrong product, a capture, a failed last save."""
        if self.needs_somebody:
            return ExitCode.DAMAGE
        return self.reading.exit_code(judged_count=len(self.ranks))

    @property
    def steps(self) -> int:
        """Number of updates with a decision."""
        return max((rank.steps for rank in self.ranks), default=0)

    @property
    def applied(self) -> int:
        """Number of updates that were applied."""
        return max((rank.applied for rank in self.ranks), default=0)

    @property
    def dropped(self) -> int:
        """Number of updates that were dropped."""
        return max((rank.dropped for rank in self.ranks), default=0)

    @property
    def overflows(self) -> int:
        """Number of updates that a loss scaler skipped."""
        return max((rank.overflows for rank in self.ranks), default=0)

    @property
    def starts(self) -> int:
        """Number of starts of the training run."""
        return max((rank.starts for rank in self.ranks), default=0)

    @property
    def saves(self) -> int:
        """Number of checkpoints that were written by every rank that saved anything."""
        return min((rank.saves for rank in self.ranks if rank.saves), default=0)

    @property
    def worst_saves(self) -> RankReport | None:
        """The rank with the most failed saves, preferably one whose last save failed. None if no save failed."""
        failed = [rank for rank in self.ranks if rank.failed_saves]
        return max(failed, key=lambda rank: (rank.last_save_failed, rank.failed_saves), default=None)

    @property
    def failed_saves(self) -> int:
        """Largest number of checkpoints of which one rank could not write its part."""
        return max((rank.failed_saves for rank in self.ranks), default=0)

    @property
    def last_save_failed(self) -> bool:
        """Whether the last save failed on any rank."""
        return any(rank.last_save_failed for rank in self.ranks)

    @property
    def guard_errors(self) -> int:
        """Number of failures of the guard's parts on all ranks."""
        return sum(rank.guard_errors for rank in self.ranks)

    @property
    def overhead(self) -> float | None:
        """The guard's largest share of a step on any rank, or None if none was measured."""
        return max((rank.overhead for rank in self.ranks if rank.overhead is not None), default=None)

    @property
    def needs_somebody(self) -> bool:
        """Whether an event needs attention."""
        grave = (self.captures, self.strikes, self.abnormal_products, self.disagreements, self.last_save_failed)
        return self.stopped_at is not None or any(grave)
