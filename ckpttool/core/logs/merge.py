"""Merge of a training run's logs into one value per step, and into the attempts of the run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, replace
from operator import itemgetter

from ckpttool.core.domain.metrics import LogAttempt, LogItem, LogNote, LogProblem, NoteKind, StepMetrics, TrainingLog
from ckpttool.core.domain.units import Step
from ckpttool.core.logs.table import FIELDS, Rows, StepTable

KEPT_PROBLEMS = 50
"""Maximum number of problems in the list; further ones are only counted, except the first log that ends early."""

_MOST_ATTEMPTS = 1000
"""Maximum number of attempts, more than any run has.

If a log goes back more often, its steps are merged, but its attempts are not reported.
"""

_FIELDS = tuple(field.name for field in fields(StepMetrics) if field.name not in {"step", "embedding_local_norm"})


def merge(logs: Iterable[tuple[str, Iterable[LogItem]]], *, keep: Collection[str] = FIELDS) -> TrainingLog:
    """Merge the logs of all ranks and all attempts into one value per step.

    Within one log, the last attempt at a step counts. Across logs, equal norms mean two ranks at the same step. Each
    rank may have values that the other lacks, and the worse of two embedding norms counts, because one unhealthy rank
    is enough. Different norms mean two attempts. The later attempt by the clock counts or, if the clock does not
    decide, the later log.

    Memory grows with the number of steps, not with the size of the logs; for a single log, by a few bytes per step.

    Args:
        logs: The name of each log, with the items that its reader yields.
        keep: Fields of `StepMetrics` that will be used.
    """
    merging = Merging(keep)
    for name, items in logs:
        merging.begin(name)
        for item in items:
            merging.add(item)
    return merging.log()


class Merging:
    """Merge of several logs, one after another, item by item."""

    def __init__(self, keep: Collection[str] = FIELDS) -> None:
        """Start with no logs."""
        self._keep = keep
        self._sources: list[_Source] = []
        self._notes: list[tuple[int, LogNote]] = []
        self._problems: list[LogProblem] = []
        self._count = 0

    def begin(self, name: str) -> None:
        """Start the next log."""
        self._sources.append(_Source(name, StepTable(self._keep)))

    def add(self, item: LogItem) -> None:
        """Add the next item of the current log."""
        if isinstance(item, StepMetrics):
            self._sources[-1].add(item)
        elif isinstance(item, LogNote):
            self._notes.append((len(self._sources), item))
        else:
            self._count += 1
            first_whole = item.ends_the_log and not any(problem.ends_the_log for problem in self._problems)
            if self._count <= KEPT_PROBLEMS or first_whole:
                self._problems.append(item)

    def log(self) -> TrainingLog:
        """Return the merged log."""
        sources = [source for source in self._sources if len(source.table)]
        metrics: Sequence[StepMetrics] = sources[0].latest() if len(sources) == 1 else ()
        if len(sources) > 1:
            steps: dict[Step, StepMetrics] = {}
            for place, source in enumerate(self._sources, 1):
                self._notes += [(place, note) for note in _merge(steps, source.latest(), source.name)]
            metrics = tuple(steps[step] for step in sorted(steps))
        return TrainingLog(
            sources=tuple(source.name for source in self._sources),
            metrics=metrics,
            attempts=_attempts(sources),
            notes=tuple(note for _, note in sorted(self._notes, key=itemgetter(0))),
            problems=tuple(self._problems),
            problem_count=self._count,
        )


class _Source:
    """Steps of one log, and the points where the log goes back."""

    __slots__ = ("name", "starts", "table")

    def __init__(self, name: str, table: StepTable) -> None:
        self.name = name
        self.table = table
        self.starts: list[int] = []

    def add(self, metrics: StepMetrics) -> None:
        place = len(self.table)
        if not place or metrics.step <= self.table.step(place - 1):
            self.starts.append(place)
        self.table.append(metrics)

    def latest(self) -> Sequence[StepMetrics]:
        """Return the last attempt at each step, in ascending order."""
        if len(self.starts) < 2:  # noqa: PLR2004  the log never goes back
            return self.table
        last = {self.table.step(place): place for place in range(len(self.table))}
        return Rows(self.table, [last[step] for step in sorted(last)])

    def attempts(self) -> list[LogAttempt]:
        """Return each part of the log with ascending steps, in the order of the log."""
        ends = [*self.starts[1:], len(self.table)]
        return [
            LogAttempt(rows=self.table[start:end], begun=number > 0, ended=end < len(self.table))
            for number, (start, end) in enumerate(zip(self.starts, ends, strict=True))
        ]


def _attempts(sources: Sequence[_Source]) -> tuple[LogAttempt, ...] | None:
    """Return the attempts of all logs in chronological order; None if there are implausibly many."""
    if sum(len(source.starts) for source in sources) > _MOST_ATTEMPTS:
        return None
    attempts: list[LogAttempt] = []
    for source in sources:
        before = len(attempts)
        for attempt in source.attempts():
            place = next((place for place, earlier in enumerate(attempts[:before]) if _agree(earlier, attempt)), None)
            if place is None:
                attempts.append(attempt)
            else:
                attempts[place] = _both(attempts[place], attempt)
    times = [attempt.rows[0].time for attempt in attempts]
    if all(times):  # otherwise the order of the arguments stays
        attempts.sort(key=lambda attempt: attempt.rows[0].time or "")
    joined = attempts[:1]
    for attempt in attempts[1:]:
        if joined[-1].last < attempt.first:  # a rotated log, or a resume that the log may not show
            rows = (*joined[-1].rows, *attempt.rows)
            joined[-1] = LogAttempt(rows=rows, begun=joined[-1].begun, ended=attempt.ended)
        elif not attempt.begun and _agree(joined[-1], attempt):  # rotated at a different step on each rank
            joined[-1] = _both(joined[-1], attempt)
        else:
            joined.append(attempt)
    return tuple(joined)


def _agree(first: LogAttempt, second: LogAttempt) -> bool:
    """Return whether two logs show the same attempt, as logs of two ranks do: equal norms at common steps."""
    shared = False
    rows = iter(first.rows)
    row = next(rows, None)
    for metrics in second.rows:
        while row is not None and row.step < metrics.step:
            row = next(rows, None)
        if row is None:
            break
        if row.step == metrics.step:
            if not same_attempt(row, metrics):
                return False
            shared = True
    return shared


def _both(first: LogAttempt, second: LogAttempt) -> LogAttempt:
    steps = {row.step: row for row in first.rows}
    for row in second.rows:
        row_before = steps.get(row.step)
        steps[row.step] = row if row_before is None else combined(row_before, row)
    rows = tuple(steps[step] for step in sorted(steps))
    return LogAttempt(rows=rows, begun=first.begun or second.begun, ended=first.ended or second.ended)


def _merge(steps: dict[Step, StepMetrics], rows: Iterable[StepMetrics], name: str) -> list[LogNote]:
    redone: list[Step] = []
    for metrics in rows:
        step = metrics.step
        row_before = steps.get(step)
        if row_before is None:
            steps[step] = metrics
        elif same_attempt(row_before, metrics):
            steps[step] = combined(row_before, metrics)
        else:
            redone.append(step)
            if not (row_before.time and metrics.time) or metrics.time >= row_before.time:
                steps[step] = metrics
    if not redone:
        return []
    return [LogNote(kind=NoteKind.REWIND, source=name, line=0, step=min(redone), previous_step=max(redone))]


def same_attempt(first: StepMetrics, second: StepMetrics) -> bool:
    """Return whether two entries for one step may be from one attempt; different norms mean two attempts."""
    if first.global_norm is None or second.global_norm is None:
        return True
    return first.global_norm == second.global_norm or (math.isnan(first.global_norm) and math.isnan(second.global_norm))


def combined(first: StepMetrics, second: StepMetrics) -> StepMetrics:
    """Combine two entries for one step of an attempt: the values of the first, and the worse embedding norm."""
    missing = {name: getattr(second, name) for name in _FIELDS if getattr(first, name) is None}
    return replace(
        first, embedding_local_norm=_worse(first.embedding_local_norm, second.embedding_local_norm), **missing
    )


def _worse(first: float | None, second: float | None) -> float | None:
    norms = [norm for norm in (first, second) if norm is not None]
    return max(norms, key=lambda norm: (math.isnan(norm), norm), default=None)
