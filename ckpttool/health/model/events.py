"""Events that health policies detect in a log, and the effect of these events on checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Rank, Step


class EventKind(str, Enum):
    """The kind of an event, actual or simulated."""

    SKIP = "skip"
    """The update is dropped, and counts towards the stop."""
    SKIP_UNCOUNTED = "skip-uncounted"
    """The update is dropped, nothing is logged and the count restarts, as for a NaN if NaN does not count."""
    OVERFLOW = "overflow"
    """The loss scaler drops the update; the norm is below the threshold."""
    STOP = "stop"
    """Training ends here."""
    UNDECIDED = "undecided"
    """Possibly a stop, depending on steps that the log does not show."""
    RESTART = "restart"
    """The log goes back to an earlier step, so the policy's memory restarts."""
    SPIKE = "spike"
    CLIP = "clip"
    """The gradient is scaled down; the update is applied."""
    NONFINITE = "nonfinite"
    LEVEL_SHIFT = "level-shift"
    """A series of unusual values that is long enough to be the new normal level."""
    SDC_EVENT = "sdc-event"
    """One abnormal feature value that counts."""
    SDC_ECHO = "sdc-echo"
    """An abnormal value within the cooldown of another, so that it does not count."""
    SDC_STRIKE = "sdc-strike"
    """Enough abnormal values in the window."""
    CHECKSUM_ON = "checksum-on"
    CHECKSUM_OFF = "checksum-off"
    CHECKSUM_DROPPED = "checksum-dropped"
    """A strike that starts no checksum, because one ran too recently or still runs."""
    CHECKSUM_ABNORMAL = "checksum-abnormal"
    """A matrix product was wrong, so the hardware of that rank is faulty."""


LOSES_UPDATE = frozenset({EventKind.SKIP, EventKind.SKIP_UNCOUNTED, EventKind.OVERFLOW})
"""Events after which the optimizer step and the learning rate do not advance."""

MARKS_SPIKE = frozenset(
    {EventKind.SKIP, EventKind.SKIP_UNCOUNTED, EventKind.SPIKE, EventKind.CLIP, EventKind.NONFINITE, EventKind.STOP}
)
"""Events that mark the surrounding steps as a spike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """One event that a policy detected, at a step or at a time."""

    kind: EventKind
    message: str
    """A description, in one sentence."""
    step: Step | None = None
    time: LocalTime | None = None
    rank: Rank | None = None
    value: float | None = None
    limit: float | None = None
    """The bound of the comparison."""
    count: int | None = None
    """Number of consecutive events, or of events in the window."""
    since_step: Step | None = None
    """First step of the event, if different from `step`."""
    since_time: LocalTime | None = None
    """First event of a strike's group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSpan:
    """Neighbouring steps whose updates are lost."""

    first: Step
    last: Step
    updates: int
    """Number of steps with lost updates that the log shows."""
    peak: float | None
    """Largest finite norm of these steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSteps:
    """The steps at which a policy could have detected an unusual norm. Elsewhere, a lack of events means nothing."""

    first: Step | None
    """First judged step; None if the policy could judge no step."""
    last: Step | None
    """Last step that the log covers: a log that prints every tenth step also covers the nine after each."""
    why: str
    """The reason why no earlier step could be judged, as a clause."""

    def objection(self, step: Step | None) -> str | None:
        """Return a clause that explains why a step is unknown, or None if the policy judged it."""
        if self.first is None or self.last is None:
            return self.why
        if step is None:
            return "its step is unknown"
        if step < self.first:
            return f"step {self.first} is the first that can be judged: {self.why}"
        if step > self.last:
            return f"the log ends before it, at step {self.last}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The effects of applying a policy to a log."""

    policy: str
    first_step: Step | None
    last_step: Step | None
    """Last step of the replay: the stop, or the end of the log."""
    steps_seen: int
    steps_unseen: int
    """Number of steps between the first and the last that the log does not show."""
    spans: tuple[SkippedSpan, ...]
    stopped_at: Step | None
    updates_lost: int
    learning_rate_index: int | None
    """Optimizer step at the end, if every update before the log was applied."""
    events: tuple[HealthEvent, ...]
    notes: tuple[str, ...]
    """Sentences that qualify the numbers."""
    judged: JudgedSteps | None = None
    """The judged steps; None if the policy judged the events of a detector instead of steps."""


class SuspectKind(str, Enum):
    """The reason why checkpoints of some steps are suspect."""

    SPIKE = "spike"
    SDC_STRIKE = "sdc-strike"
    CHECKSUM_ABNORMAL = "checksum-abnormal"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectInterval:
    """A part of a training run, by step or by time, whose checkpoints are suspect."""

    kind: SuspectKind
    reason: str
    """The reason, in one sentence."""
    first_step: Step | None = None
    recovered_step: Step | None = None
    """First healthy step after the part; None if no step is healthy, or if the part is defined by time."""
    first_time: LocalTime | None = None
    """Start of the part, if it is defined by time.

    Such a part has no end: the effect of a faulty unit stays in the weights.
    """
    rank: Rank | None = None
    peak: float | None = None
    """Largest finite norm."""


def union(spans: Sequence[JudgedSteps]) -> JudgedSteps | None:
    """Return the steps that any of several replays judged, or None if there is no replay."""
    if not spans:
        return None
    firsts = [span.first for span in spans if span.first is not None]
    lasts = [span.last for span in spans if span.last is not None]
    return JudgedSteps(first=min(firsts, default=None), last=max(lasts, default=None), why=spans[0].why)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTimeline:
    """All suspect stretches of a training run, in order."""

    intervals: tuple[SuspectInterval, ...]
    judged: JudgedSteps | None = None
    """The judged steps; None if stretches are given by time, or come from a record without the judged steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """The facts about a checkpoint that policies use."""

    name: str
    step: Step | None
    """True global step; None if unknown."""
    time: LocalTime | None = None
    """Time of the save."""
    recorded: Health = Health.UNKNOWN
    """The health in a record: a mark inside the checkpoint, or the health file."""
    prefix: str = ""
    """Prefix of the checkpoint's file names, which distinguishes training runs that share a folder."""
    run: int | None = None
    """Number of the start that saved the checkpoint, among starts with saves; None if the layout does not show it."""
    records_measured_health: bool = False
    """Whether the writer records health only if it was measured, whatever the number of pipeline stages."""
    is_marked: bool = False
    """Whether `recorded` is a person's mark, not a record of the trainer."""


class MarkState(str, Enum):
    """The position of a checkpoint on the timeline."""

    CLEAR = "clear"
    """Outside every suspect stretch."""
    SUSPECT = "suspect"
    UNKNOWN = "unknown"
    """The step was not judged, or neither the step nor the time can be compared with some stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMark:
    """The position of a checkpoint on the timeline, with the reason."""

    name: str
    step: Step | None
    state: MarkState
    reason: str
    """The reason, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthJudgement:
    """The judgement of one checkpoint, by its embedding norm."""

    name: str
    step: Step | None
    recorded: Health
    embedding_local_norm: float | None
    """Sum of squares that the log shows at the save; None if the log has no value."""
    l2_norm: float | None
    """Square root of that sum."""
    health: Health
    source: str
    """`log`, `record`, `mark`, `weights`, `replicas` or `none`: the evidence for `health`."""
    note: str | None = None
    """The reason why the checkpoint could not be judged, as one sentence; None if it was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The judgements of all checkpoints."""

    threshold: float | None
    """Embedding local norm (sum of squares) from which a checkpoint is unhealthy."""
    judgements: tuple[HealthJudgement, ...]
    """One judgement per checkpoint, in the order of the checkpoints."""
    findings: tuple[Finding, ...]
    newest_healthy: str | None = None
    """Newest healthy checkpoint on the run's current lineage; None if no checkpoint is healthy, or if not requested."""
