"""Values of each step in a training log, and the lines that could not be parsed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import NewType

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step

LocalTime = NewType("LocalTime", float)
"""Seconds since 1970-01-01 00:00 on a machine's own clock.

Logs contain no time zone, so compare times only within one cluster.
"""

MINUTE = 60.0
"""Seconds per minute."""


def parse_local_time(text: str) -> LocalTime:
    """Parse a time in the form `2024-05-01 12:30:00`, with or without `,123` at the end.

    Raises:
        ValueError: The text is not such a time.
    """
    return LocalTime(datetime.fromisoformat(text.replace(",", ".")).replace(tzinfo=timezone.utc).timestamp())


def local_time_of(text: str | None) -> LocalTime | None:
    """Return the time of a log line; None if the text is not a valid time, because a log may contain anything."""
    try:
        return None if text is None else parse_local_time(text)
    except ValueError:
        return None


def show_local_time(time: LocalTime) -> str:
    """Return the time to the second, in the form that logs use."""
    return datetime.fromtimestamp(time, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Values of one step in one log; None for values that the log lacks. Norms may be NaN or infinite."""

    step: Step
    loss: float | None = None
    """Training loss; also None if a pipeline stage without a loss prints 0."""
    global_norm: float | None = None
    """L2 norm of all gradients, before clipping."""
    embedding_local_norm: float | None = None
    """Sum of squares of the embedding's gradient on one rank; its square root is the L2 norm.

    It is 0 if there was no such gradient.
    """
    overflow: bool | None = None
    skipped: bool | None = None
    """Whether the trainer reported that it dropped this step's update."""
    time: str | None = None
    """Time of the log line on the machine's own clock, such as `2024-05-01 12:30:00`; `parse_local_time` parses it."""
    consumed_samples: int | None = None
    """Samples consumed over all ranks, up to and including this step."""
    learning_rate: float | None = None
    """Learning rate of this step's update."""
    validation_loss: float | None = None
    """Loss after this step on samples that are never trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProblem:
    """A log line that should be readable but is not, so that it provides no value."""

    source: str
    """Path of the log for display."""
    line: int
    """Line number, from 1; 0 if the problem concerns the complete file."""
    reason: str
    text: str
    """Start of the line, with control characters escaped."""

    @property
    def ends_the_log(self) -> bool:
        """Whether the log could not be opened, or could not be read to its end."""
        return self.line == 0


class NoteKind(str, Enum):
    """Kind of an event in a log."""

    REWIND = "rewind"
    """The step went back: training was resumed from an earlier checkpoint; the later values count."""
    COUNT_STOP = "count-stop"
    """Training stopped because the norm was too high in too many consecutive steps."""
    NORM_STOP = "norm-stop"
    """Training stopped at a step whose norm was too high, so that the step can be repeated."""
    NAN_STOP = "nan-stop"
    """Training stopped because of NaN; a count in the note is the number of consecutive skipped steps before the stop.
    """
    CUT = "cut"
    """The last record is incomplete, because the log is still being written or its writer was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNote:
    """An event that the log records."""

    kind: NoteKind
    source: str
    line: int
    """Line number, from 1."""
    step: Step | None
    """Step of the event; for a rewind, the first step of the new attempt."""
    previous_step: Step | None = None
    """For a rewind, the step before it in the log."""
    value: float | None = None
    """The norm, if the log has it."""
    count: int | None = None
    """Number of consecutive steps, if the log has it."""


LogItem = StepMetrics | LogProblem | LogNote
"""Items that a log reader yields, in the order of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAttempt:
    """Part of a log with ascending steps, from one start or from several starts without a gap or overlap."""

    rows: Sequence[StepMetrics]
    """Steps in ascending order; at least one."""
    begun: bool
    """Whether the log shows that a start begins here. If not, earlier steps may be missing."""
    ended: bool
    """Whether the log shows that the training stopped here. If not, it may have continued."""

    @property
    def first(self) -> Step:
        """First step of the attempt."""
        return self.rows[0].step

    @property
    def last(self) -> Step:
        """Last step of the attempt."""
        return self.rows[-1].step


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """All logs of one training run, merged."""

    sources: tuple[str, ...]
    metrics: Sequence[StepMetrics]
    """One entry per step, ascending; for a repeated step, the entry of the last attempt."""
    attempts: tuple[LogAttempt, ...] | None
    """Attempts in chronological order; None if a log goes back implausibly often."""
    notes: tuple[LogNote, ...]
    problems: tuple[LogProblem, ...]
    """The first problems; `problem_count` is the total number."""
    problem_count: int
