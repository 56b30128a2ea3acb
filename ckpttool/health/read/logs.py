"""Read logs in one pass, and find the times of saves on the clock of the logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.core.domain.metrics import LocalTime, LogAttempt, LogItem, LogNote, LogProblem, StepMetrics
from ckpttool.core.domain.question import STDIN
from ckpttool.core.logs.base import local_time
from ckpttool.core.logs.merge import KEPT_PROBLEMS, Merging, merge
from ckpttool.core.logs.reading import LogReader
from ckpttool.health.model.reading import LogReading


def written(checkpoints: Iterable[Checkpoint]) -> dict[CheckpointKey, LocalTime]:
    """Return when the last of each checkpoint's files was written, in the local time of this machine's logs."""
    times: dict[CheckpointKey, LocalTime] = {}
    for checkpoint in checkpoints:
        if checkpoint.saved_ns is not None:
            with suppress(ValueError, OverflowError):  # a file's time may be outside the calendar's range
                times[checkpoint.key] = local_time(checkpoint.saved_ns / 1e9)
    return times


class LogPass:
    """One pass over logs in bounded memory, which yields the steps and keeps the other entries."""

    def __init__(self, reader: LogReader, patterns: Sequence[str], *, keep: bool = False) -> None:
        """Find the logs.

        Args:
            reader: The reader of their formats.
            patterns: Files, globs, folders of logs, or `-`.
            keep: Whether each start of the training run will be requested, which costs some bytes per step.

        Raises:
            UsageError: There is no such log.
        """
        self.names = reader.expand(patterns)
        self._reader = reader
        self._steps = 0
        self._notes: list[LogNote] = []
        self._problems: list[LogProblem] = []
        self._count = 0
        self._unreadable = 0
        self._merging = Merging() if keep else None

    def steps(self) -> Iterator[StepMetrics]:
        """Yield the steps in the order of the logs, so that a policy sees each restart.

        Logs that begin at the same step are those of several ranks; they belong to one training run, and are merged
        first.
        """
        if len(self.names) > 1 and self._same_beginning():
            log = merge((name, self._steps_of(name)) for name in self.names)
            yield from log.metrics
            return
        for item in chain.from_iterable(self._steps_of(name) for name in self.names):
            if isinstance(item, StepMetrics):
                yield item

    def _same_beginning(self) -> bool:
        if STDIN in self.names:
            return False  # it can be read only once
        firsts = [self._first(name) for name in self.names]
        known_firsts = [step for step in firsts if step is not None]
        return len(set(known_firsts)) < len(known_firsts)

    def _first(self, name: str) -> int | None:
        items = self._reader.read(name)
        return next((item.step for item in items if isinstance(item, StepMetrics)), None)

    def attempts(self) -> tuple[LogAttempt, ...] | None:
        """Return each start of the training run; empty if not requested, or None if the logs go back too often."""
        return () if self._merging is None else self._merging.log().attempts

    def _steps_of(self, name: str) -> Iterator[LogItem]:
        """Yield the steps of a log; keep the other entries."""
        if self._merging is not None:
            self._merging.begin(name)
        for item in self._reader.read(name):
            if self._merging is not None:
                self._merging.add(item)
            match item:
                case StepMetrics():
                    self._steps += 1
                case LogNote():
                    self._notes.append(item)
                case LogProblem():
                    self.keep_problem(item)
            yield item

    def keep_problem(self, problem: LogProblem) -> None:
        """Count an unreadable line."""
        self._count += 1
        self._unreadable += problem.ends_the_log
        if len(self._problems) < KEPT_PROBLEMS:
            self._problems.append(problem)

    def reading(self) -> LogReading:
        """Return the logs read so far, without their metrics."""
        return LogReading(
            sources=self.names,
            steps=self._steps,
            notes=tuple(self._notes),
            problems=tuple(self._problems),
            problem_count=self._count,
            unreadable=self._unreadable,
        )
