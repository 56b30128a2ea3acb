"""The values that a training log has for each step, and its unreadable lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import NewType

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step

LocalTime = NewType("LocalTime", float)
"""Seconds since 1970-01-01 00:00 on a machine's own clock. Logs name no time zone, so compare times only within one
cluster."""

MINUTE = 60.0
"""Seconds per minute."""


def parse_local_time(text: str) -> LocalTime:
    """Return the moment that a log writes as `2024-05-01 12:30:00`, with or without `,123` at the end.

    Raises:
        ValueError: The text is not such a time.
    """
    return LocalTime(datetime.fromisoformat(text.replace(",", ".")).replace(tzinfo=timezone.utc).timestamp())


def local_time_of(text: str | None) -> LocalTime | None:
    """Return the time of a log line; None if it has no valid time, because a column of times may contain anything."""
    try:
        return None if text is None else parse_local_time(text)
    except ValueError:
        return None


def show_local_time(time: LocalTime) -> str:
    """Return the time in the form that logs use, to the second."""
    return datetime.fromtimestamp(time, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One step according to one log; None for values that the log lacks. Norms may be NaN or infinite."""

    step: Step
    loss: float | None = None
    """None also if a pipeline stage that has no loss prints 0."""
    global_norm: float | None = None
    """L2 norm of all gradients, before clipping."""
    embedding_local_norm: float | None = None
    """Sum of squares of the embedding's gradient on one rank (its root is the L2 norm); 0 if no such gradient was
    found."""
    overflow: bool | None = None
    skipped: bool | None = None
    """Whether the trainer reported that it dropped this step's update."""
    time: str | None = None
    """When the step was logged, `2024-05-01 12:30:00` on the machine's own clock; `parse_local_time` reads it."""
    consumed_samples: int | None = None
    """Samples consumed over all ranks, up to and including this step."""
    learning_rate: float | None = None
    """Learning rate of this step's update."""
    validation_loss: float | None = None
    """Loss after this step on samples that are never trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProblem:
    """A line that should be readable but is not. No value is guessed from it."""

    source: str
    """The log's path for display."""
    line: int
    """Counted from 1; 0 if the problem concerns the whole file."""
    reason: str
    text: str
    """The start of the line, control characters escaped."""

    @property
    def ends_the_log(self) -> bool:
        """Whether the problem concerns the whole log, which could not be opened or could not be read to its end."""
        return self.line == 0


class NoteKind(str, Enum):
    """The kind of a log entry other than numbers."""

    REWIND = "rewind"
    """The step went back: training was resumed from an earlier checkpoint; the later values count."""
    COUNT_STOP = "count-stop"
    """Training stopped because the norm was too high for too many consecutive steps."""
    NORM_STOP = "norm-stop"
    """Training stopped at a step whose norm was too high, so that the step can be repeated."""
    NAN_STOP = "nan-stop"
    """Training stopped at a NaN; if the note has a count, after this number of consecutive skipped steps."""
    CUT = "cut"
    """The last record is incomplete: the log is still being written, or its writer was stopped while writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNote:
    """An event recorded in the log."""

    kind: NoteKind
    source: str
    line: int
    """Counted from 1."""
    step: Step | None
    """The step at which the event happened; for a rewind, the first step of the new attempt."""
    previous_step: Step | None = None
    """For a rewind, the step before it in the log."""
    value: float | None = None
    """The norm, if reported."""
    count: int | None = None
    """Consecutive steps, if reported."""


LogItem = StepMetrics | LogProblem | LogNote
"""Items of a reader, in the order of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAttempt:
    """A part of a log with ascending steps: one start, or several starts that each continued where the last ended."""

    rows: Sequence[StepMetrics]
    """Ascending, at least one."""
    begun: bool
    """Whether the log shows that a start begins here. Otherwise earlier steps may be missing."""
    ended: bool
    """Whether the log shows that the training stopped here. If not, it may have continued."""

    @property
    def first(self) -> Step:
        """The first step of the attempt."""
        return self.rows[0].step

    @property
    def last(self) -> Step:
        """The last step of the attempt."""
        return self.rows[-1].step


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """One or more logs of one training run, combined."""

    sources: tuple[str, ...]
    metrics: Sequence[StepMetrics]
    """One entry per step, ascending; for a repeated step, the last attempt."""
    attempts: tuple[LogAttempt, ...] | None
    """In chronological order; None if a log goes back implausibly often."""
    notes: tuple[LogNote, ...]
    problems: tuple[LogProblem, ...]
    """The first problems; `problem_count` is the total."""
    problem_count: int
