"""The logs of a run and of its resume, one after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.metrics import LogAttempt, LogProblem, StepMetrics, TrainingLog
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.core.logs.merge import merge
from ckpttool.core.logs.reading import LogReader, expand_globs
from ckpttool.health.rules.runs import course
from ckpttool.postflight.rules.judge import interval_of

_MOST_STARTS = "a log goes back implausibly often: give the logs of two runs with --before and --after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The rows of the first run and of the resumed run, both ascending."""

    earlier: tuple[LogAttempt, ...]
    """The starts before the resumed run."""
    before: Sequence[StepMetrics]
    """The rows of the first run and of those that it continued. Empty without a first run."""
    after: Sequence[StepMetrics]
    """Empty if the logs do not show a second run."""
    before_names: tuple[str, ...]
    after_names: tuple[str, ...]
    before_formats: frozenset[str]
    """Names of the formats of the first run's logs."""
    after_formats: frozenset[str]
    is_renumbered: bool = False
    """Whether the logs number the first step 0, and the rows here number it 1, as saves do."""

    def through(self, saved: Step) -> Runs:
        """Return the runs with the start that wrote a save as the first run.

        A later start that resumed from the same save does not count, because its own resume may have been wrong.
        """
        for place in range(len(self.earlier) - 1, -1, -1):
            start = self.earlier[place]
            if start.first <= saved < start.last + interval_of(start.rows):
                return replace(self, before=course(self.earlier, place)[0])
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logs:
    """Some logs, and the starts that they show."""

    names: tuple[str, ...]
    attempts: tuple[LogAttempt, ...]
    formats: frozenset[str] = frozenset()
    """Names of their formats."""
    ends_empty: bool = False
    """Whether the newest log has no step yet, although the older ones are of other starts."""


def runs_of(  # noqa: PLR0913  callers name them
    reader: LogReader,
    before: Sequence[str],
    after: Sequence[str],
    *,
    root: str | None,
    starts: Sequence[str],
    histories: Collection[str],
    may_be_absent: bool,
) -> Runs:
    """Read the logs of both runs.

    The last start in the logs is the resumed run. The earlier ones are the first run: a start that goes back replaces
    the steps that it repeats, see `Runs.through`.

    Args:
        reader: The reader of the logs.
        before: The logs of the first run; empty: those near the tree.
        after: The logs of the resumed run; empty: those near the tree.
        root: The folder of the checkpoints; None: only the named logs are read.
        starts: The logs near the tree if each start has its own, oldest first.
        histories: Formats of logs that have the steps of all starts, so that they are of no use beside a named log.
        may_be_absent: Whether the resumed run may create its log later.

    Raises:
        UsageError: A log does not exist, or no log was found.
        IncompleteError: A log cannot be read.
    """
    first = _in_turn(reader, before)
    second = _expected(reader, after) if may_be_absent else _in_turn(reader, after)
    near = _Logs(names=(), attempts=())
    if root is not None and not (before and after):
        near = _near(reader, root, starts)
    if (before or after) and near.formats & set(histories):
        near = _Logs(names=(), attempts=())
    if not (first.names or second.names or near.names or after):
        raise UsageError("no training log was found near the checkpoints: give --before and --after")
    attempts = [*first.attempts, *near.attempts, *second.attempts] if before or after else list(near.attempts)
    no_steps_yet = not second.attempts if after else near.ends_empty  # so the last start is the first run
    return _runs(
        attempts,
        next((logs for logs in (first, near, second) if logs.names), first),
        next((logs for logs in (second, near) if logs.names), replace(second, names=tuple(after))),
        has_second=len(attempts) > 1 and not no_steps_yet,
    )


def runs_in(reader: LogReader, patterns: Sequence[str], root: str, starts: Sequence[str]) -> Runs:
    """Read logs that may show several starts; the last one is the resumed run.

    Args:
        reader: The reader of the logs.
        patterns: The logs; empty: those near the tree.
        root: The folder of the checkpoints.
        starts: The logs near the tree if each start has its own, oldest first.

    Raises:
        UsageError: A log does not exist.
        IncompleteError: A log cannot be read.
    """
    logs = _in_turn(reader, patterns) if patterns else _near(reader, root, starts)
    return _runs(logs.attempts, logs, logs, has_second=len(logs.attempts) > 1 and not logs.ends_empty)


def names_in(reader: LogReader, patterns: Sequence[str], root: str, starts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the logs that `runs_in` reads.

    Raises:
        UsageError: A log does not exist.
    """
    if patterns or starts:
        return reader.expand(patterns) if patterns else tuple(starts)
    ranks = reader.near(root)
    return tuple(dict.fromkeys(name for names in (*ranks[:1], *ranks[-1:]) for name in names))


def _runs(attempts: Sequence[LogAttempt], before: _Logs, after: _Logs, *, has_second: bool) -> Runs:
    """Split the starts into the first run and the resumed run.

    Args:
        attempts: The starts, oldest first.
        before: The logs with the first run.
        after: The logs with the resumed run.
        has_second: Whether the last start is the resumed run.
    """
    earlier = attempts[:-1] if has_second else attempts
    return Runs(
        earlier=tuple(earlier),
        before=course(earlier, len(earlier) - 1)[0] if earlier else (),
        after=attempts[-1].rows if has_second else (),
        before_names=before.names,
        after_names=after.names,
        before_formats=before.formats,
        after_formats=after.formats,
    )


def _expected(reader: LogReader, patterns: Sequence[str]) -> _Logs:
    """Read logs that the user named, and that may still be absent, or have only the lines before the first step."""
    try:
        if patterns and all(expand_globs([pattern]) for pattern in patterns):
            return _in_turn(reader, patterns)
    except (UsageError, IncompleteError):
        pass
    return _Logs(names=(), attempts=())


def _of_ranks(reader: LogReader, names: Sequence[str]) -> _Logs:
    """Read the logs of several ranks as one run."""
    reader.recognised.clear()
    log = merge((name, reader.read(name)) for name in names)
    _assert_read([log])
    if log.attempts is None:
        raise UsageError(_MOST_STARTS)
    return _Logs(names=log.sources, attempts=log.attempts, formats=frozenset(reader.recognised))


def _near(reader: LogReader, root: str, starts: Sequence[str]) -> _Logs:
    """Read the logs near a tree: those of each start, or of the first rank, or of the last rank if only it logs losses.

    Each file is read separately: a resume that repeats a run exactly looks like another rank of the same run.
    """
    if starts:
        logs = _each(reader, starts)
        return replace(_joined(reader, starts, logs), ends_empty=not logs[-1].metrics)
    ranks = reader.near(root)
    read = [_joined(reader, names, _each(reader, names)) for names in dict.fromkeys((*ranks[:1], *ranks[-1:]))]
    with_loss = (logs for logs in read if any(row.loss is not None for start in logs.attempts for row in start.rows))
    return next(with_loss, read[0] if read else _Logs(names=(), attempts=()))


def _in_turn(reader: LogReader, patterns: Sequence[str]) -> _Logs:
    """Read logs of consecutive runs, or of several ranks of one run."""
    names = reader.expand(patterns)
    logs = _each(reader, names)
    written = [log.attempts for log in logs if log.attempts]
    if all(_is_later(before[-1], after[0]) for before, after in pairwise(written)):
        return _joined(reader, names, logs)
    return _of_ranks(reader, names)


def _is_later(before: LogAttempt, after: LogAttempt) -> bool:
    """Return whether a log begins after another one, by the clock, or else by the step."""
    ended, begun = before.rows[-1].time, after.rows[0].time
    if ended and begun:
        return begun > ended
    return after.first > before.first


def _each(reader: LogReader, names: Sequence[str]) -> list[TrainingLog]:
    """Read each log on its own."""
    reader.recognised.clear()
    return [merge([(name, reader.read(name))]) for name in names]


def _joined(reader: LogReader, names: Sequence[str], logs: Sequence[TrainingLog]) -> _Logs:
    """Return the starts of logs that were written one after the other."""
    _assert_read(logs)
    starts: list[LogAttempt] = []
    for log in logs:
        if log.attempts is None:
            raise UsageError(_MOST_STARTS)
        for attempt in log.attempts:
            if starts and starts[-1].last < attempt.first:  # the file was rotated, or the run continued
                rows = (*starts[-1].rows, *attempt.rows)
                starts[-1] = LogAttempt(rows=rows, begun=starts[-1].begun, ended=attempt.ended)
            else:
                starts.append(attempt)
    return _Logs(names=tuple(names), attempts=tuple(starts), formats=frozenset(reader.recognised))


def _assert_read(logs: Sequence[TrainingLog]) -> None:
    """Reject logs of which nothing could be read, or not all: a missing end hides the resumed run.

    Raises:
        IncompleteError: A log could not be read to its end, or has lines that could not be read and no step.
    """
    for log in logs:
        for problem in log.problems:
            if problem.ends_the_log or not log.metrics:
                raise IncompleteError(_reason(problem))


def _reason(problem: LogProblem) -> str:
    at = f":{problem.line}" if problem.line else ""
    return (
        f"{problem.source}{at} {problem.reason}" if problem.ends_the_log else f"{problem.source}{at}: {problem.reason}"
    )
