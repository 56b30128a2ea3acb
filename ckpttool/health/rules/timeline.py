"""The suspect parts of a training run according to events, and the checkpoints in them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import MINUTE, LocalTime, LogAttempt, StepMetrics, show_local_time
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import IncompleteError
from ckpttool.health.model.events import (
    MARKS_SPIKE,
    CheckpointMark,
    EventKind,
    HealthEvent,
    HealthTimeline,
    JudgedSteps,
    MarkState,
    SavedCheckpoint,
    SuspectInterval,
    SuspectKind,
)
from ckpttool.health.rules.runs import Home, course

SETTLED_AFTER = 10
"""Number of steps without an event after which a spike is over; a recovering curve still fluctuates."""


_MOST_COURSES = 8
"""Maximum number of starts judged for one checkpoint; with more candidates, the right one is unknown."""


def timeline(
    events: Iterable[HealthEvent],
    steps: Sequence[Step] = (),
    *,
    margin_minutes: float = 0,
    judged: JudgedSteps | None = None,
) -> HealthTimeline:
    """Return the suspect parts according to the events.

    A spike lasts from its first event until the first step shown after its last event. A strike makes everything
    suspect from the *first* event of its group on, by default up to eight hours earlier: a faulty unit is detected
    late, and its errors stay in the weights.

    Args:
        events: Events from any number of policies.
        steps: Steps that the logs show, ascending; only these can show that a spike is over.
        margin_minutes: How long before its first event a strike's damage may have begun.
        judged: The steps at which a policy could have detected a spike.
    """
    all_events = tuple(events)
    strikes = [_strike(event, margin_minutes) for event in all_events if event.kind in _STRIKES]
    intervals = sorted((*_spikes(all_events, steps), *filter(None, strikes)), key=_order)
    return HealthTimeline(intervals=tuple(intervals), judged=judged)


def mark_checkpoints(line: HealthTimeline, saves: Iterable[SavedCheckpoint]) -> tuple[CheckpointMark, ...]:
    """Return the position of each checkpoint on the timeline."""
    return tuple(_mark(line, save) for save in saves)


class LineageTimelines:
    """The suspect parts according to the logs: in total, and on the lineage of each start of the training run."""

    def __init__(
        self,
        full_timeline: HealthTimeline,
        attempts: Sequence[LogAttempt] | None,
        judged: Callable[[Sequence[StepMetrics]], HealthTimeline],
        *,
        on_any: HealthTimeline,
    ) -> None:
        """Store the suspect parts in total.

        Args:
            full_timeline: The suspect parts by all logs, with the last attempt at each step.
            attempts: The starts in the logs; None if they go back implausibly often.
            judged: The suspect parts by the steps of one lineage.
            on_any: The suspect parts independent of the start: given by time, not by steps.
        """
        self.whole = full_timeline
        self._attempts = attempts
        self._judged = judged
        self._on_any = on_any
        self._known: dict[int, HealthTimeline] = {}

    def of(self, attempt: int | None) -> HealthTimeline:
        """Return the suspect parts on the lineage of an attempt; for None, the parts independent of the attempt."""
        if attempt is None or self._attempts is None:
            return self._on_any
        if len(self._attempts) == 1:
            return self.whole
        if attempt not in self._known:
            rows, lower_from = course(self._attempts, attempt)
            line = self._judged(rows)
            self._known[attempt] = line if lower_from is None else _named_by(line, lower_from)
        return self._known[attempt]

    def refuse_hidden_spike(self, around: Step | None) -> None:
        """Refuse to choose by step around a spike whose steps a later start renumbered, with a larger batch size.

        Args:
            around: Use the spike nearest to this step; None for the last spike.

        Raises:
            IncompleteError: This may be such a spike, so that saves before and after it may have the same step.
        """
        if not self._attempts:
            return
        place = len(self._attempts) - 1
        lower_from = course(self._attempts, place)[1]
        if lower_from is None:
            return
        hidden = [
            _is_spike_before(interval, lower_from)
            for interval in self.of(place).intervals
            if interval.kind is SuspectKind.SPIKE
        ]
        if hidden and (hidden[-1] if around is None else any(hidden)):
            raise IncompleteError(
                "there was a spike before the batch size became larger, and since then the training counts its steps "
                f"lower, from {lower_from} on: their steps do not show which checkpoints are from before the spike; "
                "compare their consumed samples, and choose one with resolve --before STEP, without --around-spike"
            )

    def marks(
        self,
        saves: Sequence[SavedCheckpoint],
        homes: Sequence[Home],
        kinds: Collection[SuspectKind] = frozenset(SuspectKind),
    ) -> tuple[CheckpointMark, ...]:
        """Return the position of each checkpoint, on the lineage of the start that saved it.

        Args:
            saves: The checkpoints.
            homes: The attempts in the logs that may have saved each checkpoint.
            kinds: The suspect stretches that count.
        """

        def kept(line: HealthTimeline) -> HealthTimeline:
            intervals = tuple(interval for interval in line.intervals if interval.kind in kinds)
            return HealthTimeline(intervals=intervals, judged=line.judged if SuspectKind.SPIKE in kinds else None)

        return mark_by_start(kept(self.whole), saves, homes, lambda attempt: kept(self.of(attempt)))


def _is_spike_before(interval: SuspectInterval, step: Step) -> bool:
    return interval.kind is SuspectKind.SPIKE and interval.first_step is not None and interval.first_step < step


def _named_by(line: HealthTimeline, lower_from: Step) -> HealthTimeline:
    """Label spikes before a change in batch size with that change, because their steps were renumbered."""
    intervals = (
        replace(interval, reason=f"a spike from before step {lower_from}, where the batch size became larger")
        if _is_spike_before(interval, lower_from)
        else interval
        for interval in line.intervals
    )
    return HealthTimeline(intervals=tuple(intervals), judged=line.judged)


def without_skipped(events: Iterable[HealthEvent], skipped: Collection[Step]) -> list[HealthEvent]:
    """Return the events that may have harmed the weights. A skipped step changed no weight."""
    return [event for event in events if event.step is None or event.step not in skipped]


def mark_by_start(
    line: HealthTimeline,
    saves: Sequence[SavedCheckpoint],
    homes: Sequence[Home],
    line_of: Callable[[int | None], HealthTimeline],
) -> tuple[CheckpointMark, ...]:
    """Return the position of each checkpoint, on the lineage of the start that saved it.

    Args:
        line: The timeline by all logs and the last attempt at each step, for checkpoints whose steps were not repeated.
        saves: The checkpoints.
        homes: The attempts in the logs that may have saved each checkpoint.
        line_of: The timeline of an attempt's own lineage; for None, the part independent of the start.
    """
    return tuple(_mark_by_start(line, *pair, line_of) for pair in zip(saves, homes, strict=True))


def _mark_by_start(
    line: HealthTimeline, save: SavedCheckpoint, home: Home, line_of: Callable[[int | None], HealthTimeline]
) -> CheckpointMark:
    if not home.sure:
        common = line_of(None)
        mark = _mark(common, save)
        if mark.state is MarkState.SUSPECT:
            return mark
        if common.intervals == line.intervals:
            return _mark(line, save)
    elif not home.attempts:
        return _mark(line, save)
    elif len(home.attempts) <= _MOST_COURSES:
        marks = [_mark(line_of(place), save) for place in home.attempts]
        if len({mark.state for mark in marks}) == 1:
            return marks[0]
    reason = "the logs do not show which start of the training saved it, and another start also reached its step"
    return CheckpointMark(name=save.name, step=save.step, state=MarkState.UNKNOWN, reason=reason)


_STRIKES = {
    EventKind.SDC_STRIKE: SuspectKind.SDC_STRIKE,
    EventKind.CHECKSUM_ABNORMAL: SuspectKind.CHECKSUM_ABNORMAL,
}


def _order(interval: SuspectInterval) -> tuple[float, float, str]:
    return (interval.first_step or 0, interval.first_time or 0.0, interval.reason)


def _strike(event: HealthEvent, margin_minutes: float) -> SuspectInterval | None:
    time, step = event.since_time, event.since_step
    if time is None and step is None:  # only the strike itself
        time, step = event.time, event.step
    if time is None and step is None:
        return None
    begin = None if time is None else LocalTime(time - margin_minutes * MINUTE)
    since = f"step {step}" if begin is None else show_local_time(begin)
    rank = "" if event.rank is None else f" on rank {event.rank}"
    return SuspectInterval(
        kind=_STRIKES[event.kind],
        first_step=step if time is None else None,
        first_time=begin,
        rank=event.rank,
        reason=f"{event.message}{rank}; checkpoints since {since} may contain wrong numbers",
    )


def _spikes(events: Sequence[HealthEvent], steps: Sequence[Step]) -> Iterator[SuspectInterval]:
    shifts = frozenset(event.step for event in events if event.kind is EventKind.LEVEL_SHIFT)
    group: list[HealthEvent] = []
    last = Step(0)
    for event in sorted((e for e in events if e.kind in MARKS_SPIKE and e.step is not None), key=lambda e: e.step or 0):
        step = event.step or Step(0)
        if group and step > last + SETTLED_AFTER:
            yield _spike(group, last, steps, shifts)
            group = []
        group.append(event)
        last = step
    if group:
        yield _spike(group, last, steps, shifts)


def _spike(
    group: list[HealthEvent], last: Step, steps: Sequence[Step], shifts: frozenset[Step | None]
) -> SuspectInterval:
    """Return the suspect part of a spike. A spike that became the usual level is not detected, but has not ended."""
    first = group[0].step
    after = bisect_right(steps, last)
    shifted = any(event.step in shifts for event in group)
    recovered = steps[after] if after < len(steps) and not shifted else None
    norms = [event.value for event in group if event.value is not None and math.isfinite(event.value)]
    until = "the end of the log" if recovered is None else f"step {recovered}"
    return SuspectInterval(
        kind=SuspectKind.SPIKE,
        first_step=first,
        recovered_step=recovered,
        peak=max(norms, default=None),
        reason=f"a spike from step {first} until {until}",
    )


def _mark(line: HealthTimeline, save: SavedCheckpoint) -> CheckpointMark:
    states = [(_inside(interval, save), interval) for interval in line.intervals]
    reasons = [interval.reason for inside, interval in states if inside]
    if reasons:
        return CheckpointMark(name=save.name, step=save.step, state=MarkState.SUSPECT, reason=f"saved in {reasons[0]}")
    if any(inside is None for inside, _ in states):
        reason = "neither its step nor its time can be compared with every suspect interval"
        return CheckpointMark(name=save.name, step=save.step, state=MarkState.UNKNOWN, reason=reason)
    objection = None if line.judged is None else line.judged.objection(save.step)
    if objection is not None:
        reason = f"not judged: {objection}"
        return CheckpointMark(name=save.name, step=save.step, state=MarkState.UNKNOWN, reason=reason)
    reason = "saved outside every suspect interval"
    return CheckpointMark(name=save.name, step=save.step, state=MarkState.CLEAR, reason=reason)


def _inside(interval: SuspectInterval, save: SavedCheckpoint) -> bool | None:
    """Return whether the checkpoint was saved within the suspect part, or None if unknown."""
    if interval.first_time is not None:
        return None if save.time is None else save.time >= interval.first_time
    if save.step is None or interval.first_step is None:
        return None
    return save.step >= interval.first_step and (interval.recovered_step is None or save.step < interval.recovered_step)
