"""Count the starts in a row that resumed from one save and ended before the next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import LocalTime, LogAttempt, local_time_of
from ckpttool.core.domain.units import Step
from ckpttool.postflight.rules.judge import interval_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStarts:
    """The last starts in a row that resumed from one save and ended before the next save."""

    saved: Step
    """Step of the save."""
    starts: tuple[LogAttempt, ...]
    """The starts, oldest first."""


def failed_starts(
    attempts: Sequence[LogAttempt], saves: Sequence[Step], since: Mapping[Step, LocalTime] | None = None
) -> FailedStarts | str:
    """Return the failed starts at the end of the logs, or a sentence why none is known.

    A start that began elsewhere, reached the next save or began before `since` ends the row. So does a start whose
    beginning is unknown, because a wrong mark costs work.

    Args:
        attempts: The starts in the logs, oldest first.
        saves: The steps of all saves of the tree, ascending, whatever their state.
        since: Times, on the clock of the logs, before which starts do not count, by the step of the save.
    """
    if not attempts:
        return "the logs show no start with a step"
    interval = interval_of(max(attempts, key=lambda attempt: len(attempt.rows)).rows)
    last = attempts[-1]
    saved = _origin(last, saves, interval)
    if saved is None:
        return f"the last start in the logs begins with step {last.first}, and no checkpoint is right before it"
    following = next_save(saved, saves)
    begin = (since or {}).get(saved)
    row: list[LogAttempt] = []
    for place in range(len(attempts) - 1, -1, -1):
        attempt = attempts[place]
        is_start = place > 0 or attempt.begun
        has_reached = following is not None and attempt.last >= following
        if not is_start or has_reached or _origin(attempt, saves, interval) != saved:
            break
        if begin is not None and not _is_after(attempt, begin):
            break
        row.append(attempt)
    return FailedStarts(saved=saved, starts=tuple(reversed(row)))


def next_save(saved: Step, saves: Sequence[Step]) -> Step | None:
    """Return the step of the next save: that of the tree or, failing that, after the usual interval; None if unknown.

    A start that got there did not end because of the save it resumed from, even if it could not write the next one.
    """
    later = [save for save in saves if save > saved]
    if later:
        return later[0]
    gaps = [second - first for first, second in pairwise(saves)]
    return Step(saved + int(median(gaps))) if gaps else None


def _origin(attempt: LogAttempt, saves: Iterable[Step], interval: int) -> Step | None:
    """Return the step of the save right before the first logged step; None if no save is there."""
    return max((save for save in saves if save < attempt.first <= save + interval), default=None)


def _is_after(attempt: LogAttempt, begin: LocalTime) -> bool:
    time = local_time_of(attempt.rows[0].time)
    return time is not None and time > begin


def of_step(saves: Sequence[Checkpoint], step: Step) -> Checkpoint | str:
    """Return the save at a step, that of the latest run; or a sentence if it is unknown which one was loaded."""
    candidates = [save for save in saves if save.step == step]
    latest = [save for save in candidates if save.run == max(candidate.run for candidate in candidates)]
    if len(latest) == 1 and len({save.prefix for save in candidates}) == 1:
        return latest[0]
    names = ", ".join(save.name for save in candidates)
    return f"several checkpoints are at step {step} ({names}), so which one the starts loaded is unknown"
