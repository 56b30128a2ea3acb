"""Answers about training logs."""

from __future__ import annotations

from ckpttool.core.domain.advice import Calibration, SpikeAdvice, StopAdvice, Threshold, ThresholdSettings
from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Finding, Severity, of_findings, safest, suspect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.health.model.asd import AsdCheck
from ckpttool.health.model.events import (
    CheckpointMark,
    HealthJudgement,
    HealthReport,
    HealthTimeline,
    ReplayResult,
)
from ckpttool.health.model.reading import LogReading
from ckpttool.trainers.findings import TrainersCode


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNumbers:
    """Statistics of one checkpoint's shards that show its health."""

    name: str
    step: Step | None
    nonfinite: int
    """NaN and infinite values, over all shards that were read."""
    embedding_l2: float | None
    """L2 norm of the embedding's weights on the rank with the largest norm; None if there is no such tensor."""
    embedding_moment: float | None
    """Sum of squares of the embedding's first Adam moment on the rank with the largest sum.

    A substitute for the embedding local norm: the moment is a smoothed gradient, so it is smaller and lags behind.
    """
    read_all: bool
    """Whether every shard could be read to its end."""


_BY_HEALTH = {
    Health.HEALTHY: ExitCode.OK,
    Health.UNKNOWN: ExitCode.INCOMPLETE,
    Health.UNHEALTHY: ExitCode.DAMAGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthAnswer(Answered):
    """The health of every checkpoint."""

    NOUN = "health"

    root: str
    report: HealthReport
    """Oldest checkpoint first."""
    newest: HealthJudgement | None
    """Health of the newest checkpoint on the last lineage of the training run."""
    reading: LogReading | None
    """The logs that were read; None if there is no log."""
    points: tuple[tuple[Step, float], ...]
    """Embedding local norm (sum of squares) at each step that shows one."""
    weights: tuple[WeightNumbers, ...]
    """One entry per checkpoint, if the shards were read."""
    health_file: str | None
    """The health file that was used, or written."""
    written: bool = False
    """Whether `health_file` was changed."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 10 if the newest checkpoint is unhealthy or the record is wrong, or 14 if the health is unknown."""
        if self.newest is None:
            return ExitCode.NOTHING_TO_RESUME
        codes = {of_findings(self.report.findings), _BY_HEALTH[self.newest.health]}
        if self.report.threshold is not None and self.newest.source == "record":
            codes.add(ExitCode.INCOMPLETE)  # the threshold was requested, and could not be applied
        return safest(codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAnswer(Answered):
    """The effect that a policy would have had, on the run and on its checkpoints."""

    NOUN = "replay"

    settings: tuple[tuple[str, str | float], ...]
    """Settings of the policy, by name."""
    result: ReplayResult
    reading: LogReading
    timeline: HealthTimeline
    marks: tuple[CheckpointMark, ...] | None
    """The position of each checkpoint on the timeline; None if no tree was given."""
    advice: SpikeAdvice | StopAdvice | None
    """Advice on the spike or the stop; None if not requested."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 14 if a log could not be read to the end, or has nothing to judge."""
        judged = self.result.judged
        if judged is not None and judged.first is None:
            return ExitCode.INCOMPLETE
        return self.reading.exit_code(judged_count=len(self.result.events) + self.result.steps_seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationAnswer(Answered):
    """Thresholds that fit a run."""

    NOUN = "calibration"

    calibration: Calibration
    settings: ThresholdSettings
    """Settings for the config of the trainer with such thresholds."""
    reading: LogReading

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 10 if the stretch is not normal, or 14 if nothing can be recommended."""
        if any(threshold.alarms_too_often for threshold in self.thresholds):
            return ExitCode.DAMAGE
        return self.reading.exit_code(judged_count=len(self.thresholds))

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        """The thresholds that are recommended."""
        found_thresholds = (self.calibration.global_norm, self.calibration.embedding_local_norm)
        return tuple(threshold for threshold in found_thresholds if isinstance(threshold, Threshold))


@dataclass(frozen=True, slots=True, kw_only=True)
class AsdAnswer(Answered):
    """A configuration string of feature-value detection, as its parser reads it."""

    NOUN = "asd"

    variable: str
    """The environment variable."""
    text: str
    check: AsdCheck

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 10 if a setting does not have its intended effect."""
        return of_findings(self.findings)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every trap in the string or, if training would not start, the reason and the notes."""
        error = self.check.error
        if error is None:
            return self.check.findings
        stopped = suspect(TrainersCode.CONFIG_WRONG_TYPE, error)
        return (stopped, *(finding for finding in self.check.findings if finding.severity is Severity.NOTE))
