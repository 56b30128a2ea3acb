"""The logs of a run and of its resume, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import LogAttempt, LogProblem, StepMetrics, TrainingLog
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.core.logs.merge import merge
from ckpttool.core.logs.reading import LogReader, expand_globs
from ckpttool.health.rules.runs import course

_MOST_STARTS = "a log goes back implausibly often: give the logs of two runs with --before and --after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The rows of the first run and of the resumed run, both ascending."""

    before: Sequence[StepMetrics]
    """The rows that led to the save, and those that the resumed run repeats. Empty without a first run."""
    after: Sequence[StepMetrics]
    """Empty if the logs do not show a second run."""
    before_names: tuple[str, ...]
    after_names: tuple[str, ...]
    formats: frozenset[str]
    """Names of the formats of the logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logs:
    """Some logs, and the starts that they show."""

    names: tuple[str, ...]
    attempts: tuple[LogAttempt, ...]


def runs_of(
    reader: LogReader, before: Sequence[str], after: Sequence[str], root: str | None, *, may_be_absent: bool
) -> Runs:
    """Read the logs of both runs.

    The last start in the logs is the resumed run. The earlier ones are the first run: a start that goes back replaces
    the steps that it repeats.

    Args:
        reader: The reader of the logs.
        before: The logs of the first run; empty: those near the tree.
        after: The logs of the resumed run; empty: those near the tree.
        root: The folder of the checkpoints; None: only the named logs are read.
        may_be_absent: Whether the resumed run may create its log later.

    Raises:
        UsageError: A log does not exist, or no log was found.
        IncompleteError: A log cannot be read.
    """
    first = _named(reader, before)
    second = _Logs(names=(), attempts=()) if may_be_absent and _is_absent(after) else _named(reader, after)
    near = _Logs(names=(), attempts=())
    if root is not None and not (before and after):
        near = _near(reader, root)
    if not (first.names or second.names or near.names or after):
        raise UsageError("no training log was found near the checkpoints: give --before and --after")
    attempts = [*first.attempts, *near.attempts, *second.attempts] if before or after else list(near.attempts)
    resumed = attempts[-1] if len(attempts) > 1 else None
    if after and not second.attempts:  # its log is empty, so the last start is the first run
        resumed, earlier = None, attempts
    else:
        earlier = attempts if resumed is None else attempts[:-1]
    return Runs(
        before=course(earlier, len(earlier) - 1)[0] if earlier else (),
        after=() if resumed is None else resumed.rows,
        before_names=first.names or near.names or second.names,
        after_names=second.names or near.names or tuple(after),
        formats=frozenset(reader.recognised),
    )


def _is_absent(patterns: Sequence[str]) -> bool:
    """Return whether logs are named, and none of them exists."""
    for pattern in patterns:
        with suppress(UsageError):
            return not expand_globs([pattern])
    return bool(patterns)


def _named(reader: LogReader, patterns: Sequence[str]) -> _Logs:
    """Read logs that the user named: those of several ranks are one run."""
    if not patterns:
        return _Logs(names=(), attempts=())
    log = merge((name, reader.read(name)) for name in reader.expand(patterns))
    _assert_read([log])
    if log.attempts is None:
        raise UsageError(_MOST_STARTS)
    return _Logs(names=log.sources, attempts=log.attempts)


def _near(reader: LogReader, root: str) -> _Logs:
    """Read the logs near a tree: those of the first rank, or of the last one if only that logs the loss.

    Each file is read separately: a resume that repeats a run exactly looks like another rank of the same run.
    """
    ranks = reader.near(root)
    read = [_separately(reader, names) for names in dict.fromkeys((*ranks[:1], *ranks[-1:]))]
    with_loss = (logs for logs in read if any(row.loss is not None for start in logs.attempts for row in start.rows))
    return next(with_loss, read[0] if read else _Logs(names=(), attempts=()))


def _separately(reader: LogReader, names: Sequence[str]) -> _Logs:
    logs = [merge([(name, reader.read(name))]) for name in names]
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
    return _Logs(names=tuple(names), attempts=tuple(starts))


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
