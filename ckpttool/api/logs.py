"""Training logs: which ones are meant, and what they show."""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from ckpttool.domain.log_answer import LogReading
from ckpttool.domain.log_question import STDIN, LogQuestion
from ckpttool.domain.metrics import LogAttempt, LogItem, LogNote, LogProblem, StepMetrics, TrainingLog
from ckpttool.errors import UsageError
from ckpttool.logs import NO_FORMAT, expand_globs, open_log, read_log
from ckpttool.logs.asd_events import read_asd_events, without_relayed
from ckpttool.logs.base import LogSource
from ckpttool.logs.fields import parse_columns
from ckpttool.logs.find import RankLogs, find_logs, logs_in
from ckpttool.logs.merge import KEPT_PROBLEMS, Together, put_together
from ckpttool.logs.table import FIELDS

if TYPE_CHECKING:
    from ckpttool.domain.asd import AsdEvent


def expand(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the logs that the user means: files, globs, folders of logs, or `-`; each once.

    Raises:
        UsageError: There is no such log.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        if os.path.isdir(pattern):
            found = logs_in(pattern)
            if not found:
                raise UsageError(f"{pattern} holds no rank_N/info.log and no worker_N.log; name the logs in it")
        else:
            found = expand_globs([pattern])
        names.update(dict.fromkeys(found))
    return tuple(names)


def columns_of(question: LogQuestion) -> Mapping[str, str] | None:
    """Return what the user says about columns.

    Raises:
        UsageError: It cannot be meant.
    """
    return None if question.columns is None else parse_columns(question.columns)


def together(question: LogQuestion, root: str | None = None, *, keep: Collection[str] = FIELDS) -> TrainingLog | None:
    """Return one value a step from all logs that are meant; None where none is given and none found.

    Args:
        question: Which logs.
        root: The folder of the checkpoints, in whose neighbourhood to look where no log is given.
        keep: Fields of `StepMetrics` that will be asked for.

    Raises:
        UsageError: There is no such log, or it needs an option or a package.
    """
    columns = columns_of(question)
    if question.patterns:
        names = expand(question.patterns)
        return put_together(((name, read_log(name, columns=columns)) for name in names), keep=keep)
    found = () if root is None else find_logs(root)
    return put_together(_first_stage(found, columns), keep=keep) if found else None


def _first_stage(
    ranks: Iterable[RankLogs], columns: Mapping[str, str] | None
) -> Iterator[tuple[str, Iterable[LogItem]]]:
    """Yield the logs of the ranks that hold the embedding: from rank 0 up to the first one that measured none.

    Pipeline stages take neighbouring ranks, and other stages print 0: their logs need not be read.
    """
    for logs in ranks:
        watched = [_Watched(read_log(name, columns=columns)) for name in logs]
        yield from zip(logs, watched, strict=True)
        if not any(one.measured for one in watched):  # whoever asked for the next one has read these
            return


class _Watched:
    """The items of a log; notices whether it shows an embedding norm."""

    def __init__(self, items: Iterable[LogItem]) -> None:
        self._items = items
        self.measured = False

    def __iter__(self) -> Iterator[LogItem]:
        for item in self._items:
            if isinstance(item, StepMetrics) and item.embedding_local_norm:
                self.measured = True
            yield item


def reading_of(log: TrainingLog) -> LogReading:
    """Say what was read."""
    return LogReading(
        sources=log.sources,
        steps=len(log.metrics),
        notes=log.notes,
        problems=log.problems,
        problem_count=log.problem_count,
        unreadable=sum(problem.ends_the_log for problem in log.problems),
    )


class LogPass:
    """One pass over logs in bounded memory: yields the steps, and keeps what else they tell."""

    def __init__(self, question: LogQuestion, *, keep: bool = False) -> None:
        """Find the logs.

        Args:
            question: Which ones.
            keep: Whether each start of the training that they show will be asked for: some bytes a step.

        Raises:
            UsageError: There is no such log.
        """
        self.names = expand(question.patterns)
        self._columns = columns_of(question)
        self._steps = 0
        self._notes: list[LogNote] = []
        self._problems: list[LogProblem] = []
        self._count = 0
        self._unreadable = 0
        self._together = Together() if keep else None

    def steps(self) -> Iterator[StepMetrics]:
        """Yield the steps as the logs have them, so that a policy sees each restart.

        Logs that begin at the same step are those of several ranks; they are one training, and are merged first.
        """
        if len(self.names) > 1 and self._same_beginning():
            log = put_together((name, self._kept(name)) for name in self.names)
            yield from log.metrics
            return
        for item in chain.from_iterable(self._kept(name) for name in self.names):
            if isinstance(item, StepMetrics):
                yield item

    def _same_beginning(self) -> bool:
        if STDIN in self.names:
            return False  # it can be read only once
        firsts = [self._first(name) for name in self.names]
        known = [step for step in firsts if step is not None]
        return len(set(known)) < len(known)

    def _first(self, name: str) -> int | None:
        items = read_log(name, columns=self._columns)
        return next((item.step for item in items if isinstance(item, StepMetrics)), None)

    def attempts(self) -> tuple[LogAttempt, ...] | None:
        """Return each start of the training that was seen; none where nobody said that they would be asked for."""
        return () if self._together is None else self._together.log().attempts

    def _kept(self, name: str) -> Iterator[LogItem]:
        """Yield what a log shows; keep what is no step."""
        if self._together is not None:
            self._together.begin(name)
        for item in read_log(name, columns=self._columns):
            if self._together is not None:
                self._together.add(item)
            match item:
                case StepMetrics():
                    self._steps += 1
                case LogNote():
                    self._notes.append(item)
                case LogProblem():
                    self.keep_problem(item)
            yield item

    def keep_problem(self, problem: LogProblem) -> None:
        """Count what could not be read."""
        self._count += 1
        self._unreadable += problem.ends_the_log
        if len(self._problems) < KEPT_PROBLEMS:
            self._problems.append(problem)

    def reading(self) -> LogReading:
        """Say what was read so far."""
        return LogReading(
            sources=self.names,
            steps=self._steps,
            notes=tuple(self._notes),
            problems=tuple(self._problems),
            problem_count=self._count,
            unreadable=self._unreadable,
        )


def detector_events(names: Sequence[str]) -> tuple[tuple[AsdEvent, ...], tuple[LogProblem, ...]]:
    """Return what feature-value detectors logged, each event once, in the order of time; and what is not readable."""
    events: list[AsdEvent] = []
    problems: list[LogProblem] = []
    for name in names:
        try:
            with open_log(name) as stream:
                for item in read_asd_events(LogSource(name=name, stream=stream)):
                    if isinstance(item, LogProblem):
                        problems.append(item)
                    else:
                        events.append(item)
        except (OSError, EOFError, zlib.error) as error:
            problems.append(LogProblem(source=name, line=0, reason=f"cannot be read: {error}", text=""))
    return without_relayed(events), tuple(problems)


def without_detectors(log: TrainingLog, sources: set[str]) -> TrainingLog:
    """Return the log without the complaint that a detector's own log shows no steps: nobody meant it to."""
    kept = tuple(each for each in log.problems if each.reason != NO_FORMAT or each.source not in sources)
    return replace(log, problems=kept, problem_count=log.problem_count - len(log.problems) + len(kept))
