"""Effects of a policy over a log."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from ckpttool.core.domain.advice import SpikeAdvice, StopAdvice
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LogAttempt, StepMetrics
from ckpttool.core.domain.question import SpikeQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.health.model.answers import ReplayAnswer
from ckpttool.health.model.events import (
    LOSES_UPDATE,
    CheckpointMark,
    EventKind,
    HealthEvent,
    HealthTimeline,
    JudgedSteps,
    MarkState,
    ReplayResult,
    SavedCheckpoint,
    SkippedSpan,
)
from ckpttool.health.policies.base import Coverage, Policy, judge
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.rules.detour import (
    SampleClock,
    Stop,
    advise_after_stop,
    advise_spike,
    ended_in_skips,
    loss_after,
    sample_clock,
    spike_to_pass,
)
from ckpttool.health.rules.timeline import LineageTimelines, mark_checkpoints, timeline, without_skipped

ONLY_AN_OBSERVATION = (
    "from step {step} on, the log is only an observation: the training applied that update, so with this policy "
    "every later norm would have been different"
)


class Trace:
    """The facts to keep about steps: their numbers, and the samples consumed."""

    def __init__(self) -> None:
        self.steps: array[int] | list[int] = array("q")
        self._losses = array("d")  # by step; NaN if the step shows no value
        self.skipped: set[Step] = set()
        """Steps that the trainer logged as skipped."""
        self.skipped_at_end = 0
        """Number of consecutive steps at the end that were skipped for a reason other than an overflow."""
        self.clock: SampleClock | None = None
        self.unseen = 0
        self.without_norm = 0
        self._counted: StepMetrics | None = None  # the last row that shows the samples consumed

    def watch(self, metrics: Iterable[StepMetrics]) -> Iterator[StepMetrics]:
        """Yield the steps unchanged, and record the facts about them."""
        last: Step | None = None
        for row in metrics:
            if last is not None and row.step > last + 1:
                self.unseen += row.step - last - 1
            last = row.step
            try:
                self.steps.append(row.step)
            except OverflowError:  # implausible for a training run, but a log may contain it
                self.steps = [*self.steps, row.step]
            self._losses.append(math.nan if row.loss is None else row.loss)
            self.without_norm += row.global_norm is None
            if row.skipped:
                self.skipped.add(row.step)
            self.skipped_at_end = self.skipped_at_end + 1 if row.skipped and not row.overflow else 0
            if self.clock is None and row.consumed_samples is not None:
                self.clock = sample_clock([row] if self._counted is None else [self._counted, row])
                self._counted = row
            yield row

    @property
    def newest(self) -> Step:
        """The last step of the run; 0 if the log shows no step."""
        return Step(max(self.steps, default=0))

    def losses(self) -> Iterator[tuple[Step, float]]:
        """Yield the losses that are numbers, by ascending step."""
        for step, loss in sorted(zip(self.steps, self._losses, strict=True)):
            if math.isfinite(loss):
                yield Step(step), loss

    def ascending(self) -> Sequence[Step]:
        """Return the steps in ascending order, although a log goes back if training was resumed."""
        ordered = all(self.steps[index] < self.steps[index + 1] for index in range(len(self.steps) - 1))
        return cast("Sequence[Step]", self.steps if ordered else sorted(self.steps))


def replay(policy: Policy, metrics: Iterable[StepMetrics], trace: Trace | None = None) -> ReplayResult:
    """Return the policy's events, their cost, and the steps that the log allows the policy to judge.

    Args:
        policy: The rule.
        metrics: In the order of the log; consumed once, in bounded memory.
        trace: Keeps the needed facts about the steps.
    """
    trace = Trace() if trace is None else trace
    coverage = Coverage(policy)
    events = tuple(judge(policy, trace.watch(metrics), coverage))
    return _result_of(policy.name, events, trace, coverage.steps())


def logged(policy: str, events: Iterable[HealthEvent]) -> ReplayResult:
    """Return a policy's events from log entries other than steps, without judging any step.

    Args:
        policy: The policy's name for users.
        events: The policy's events.
    """
    return _result_of(policy, tuple(events), Trace())


def _result_of(
    policy: str, events: tuple[HealthEvent, ...], trace: Trace, judged: JudgedSteps | None = None
) -> ReplayResult:
    lost = [(event.step, event.value) for event in events if event.kind in LOSES_UPDATE and event.step is not None]
    stop = next((event.step for event in events if event.kind is EventKind.STOP), None)
    first_lost = lost[0][0] if lost else None
    last = Step(trace.steps[-1]) if trace.steps else None
    index = None if last is None else last - len({step for step, _ in lost})
    return ReplayResult(
        policy=policy,
        first_step=Step(trace.steps[0]) if trace.steps else None,
        last_step=last,
        steps_seen=len(trace.steps),
        steps_unseen=trace.unseen,
        spans=_spans(lost),
        stopped_at=stop,
        updates_lost=len(lost),
        learning_rate_index=index,
        events=events,
        notes=tuple(_notes(trace, events, first_lost)),
        judged=judged,
    )


def _notes(trace: Trace, events: tuple[HealthEvent, ...], first_lost: Step | None) -> Iterator[str]:
    if first_lost is not None and first_lost not in trace.skipped:
        yield ONLY_AN_OBSERVATION.format(step=first_lost)
    if trace.unseen:
        yield f"{trace.unseen} steps are missing from the log; how many steps in a row are affected is unknown"
    if trace.without_norm:
        yield f"{trace.without_norm} steps have no norm; they are treated as if they were not in the log"
    if trace.steps and trace.steps[0] > 1:
        yield f"the log starts at step {trace.steps[0]}: updates lost before it are unknown"
    yield from (event.message for event in events if event.kind in {EventKind.UNDECIDED, EventKind.RESTART})


def _spans(lost: list[tuple[Step, float | None]]) -> tuple[SkippedSpan, ...]:
    """Group neighbouring steps with lost updates."""
    spans: list[SkippedSpan] = []
    for step, norm in lost:
        peak = norm if norm is not None and math.isfinite(norm) else None
        if spans and step == spans[-1].last + 1:
            before = spans.pop()
            peaks = [norm for norm in (before.peak, peak) if norm is not None]
            first, updates = before.first, before.updates + 1
            spans.append(SkippedSpan(first=first, last=step, updates=updates, peak=max(peaks, default=None)))
        else:
            spans.append(SkippedSpan(first=step, last=step, updates=1, peak=peak))
    return tuple(spans)


def courses_of(
    policy: Policy | None, full_timeline: HealthTimeline, attempts: Sequence[LogAttempt] | None, margin_minutes: float
) -> LineageTimelines:
    """Return the steps that the policy suspects, on the lineage of each start of the training run.

    Args:
        policy: The rule; None if suspect parts are given by time, independent of the start.
        full_timeline: The suspect parts over all logs.
        attempts: The starts in the logs.
        margin_minutes: How long before its first event a strike's damage may have begun.
    """

    def judged(rows: Sequence[StepMetrics]) -> HealthTimeline:
        if policy is None:
            return full_timeline
        coverage = Coverage(policy)
        events = without_skipped(judge(policy, rows, coverage), {row.step for row in rows if row.skipped})
        steps = [row.step for row in rows]
        return timeline(events, steps, margin_minutes=margin_minutes, judged=coverage.steps())

    return LineageTimelines(
        full_timeline, attempts, judged, on_any=full_timeline if policy is None else HealthTimeline(intervals=())
    )


def advise(wish: SpikeQuestion, policy: Policy, answer: ReplayAnswer, trace: Trace) -> SpikeAdvice | StopAdvice:
    """Return how to avoid a spike, or how to continue after a stop.

    Args:
        wish: The spike, and the existing checkpoints.
        policy: The rule.
        answer: The policy's decisions.
        trace: The steps.

    Raises:
        UsageError: There is no spike, or no checkpoints were passed.
        IncompleteError: Whether there is a spike is unknown.
    """
    checkpoints = _checkpoints(wish, answer, trace)
    stop = None
    if answer.result.stopped_at is not None and isinstance(policy, SkipPolicy):
        stop = Stop(step=answer.result.stopped_at, count=policy.count_threshold)
    elif wish.around is None:
        stop = ended_in_skips(answer.reading.notes, trace.newest, trace.skipped_at_end)
    if stop is not None:
        good = [mark.step for mark in checkpoints if mark.step is not None]
        return advise_after_stop(stop.step, good, count=stop.count, clock=trace.clock, skipped=stop.skipped)
    threshold = policy.threshold if isinstance(policy, SkipPolicy) else None
    spike = spike_to_pass(answer.timeline, wish.around, answer.reading, threshold, sorted(trace.skipped))
    good = [mark.step for mark in checkpoints if mark.state is not MarkState.SUSPECT and mark.step is not None]
    spike = replace(spike, loss=loss_after(spike, trace.losses()))
    return advise_spike(spike, good, newest=trace.newest, clock=trace.clock)


def _checkpoints(wish: SpikeQuestion, answer: ReplayAnswer, trace: Trace) -> tuple[CheckpointMark, ...]:
    if wish.every is not None:
        steps = range(wish.every, trace.newest + 1, wish.every)
        return mark_checkpoints(answer.timeline, (SavedCheckpoint(name=str(step), step=Step(step)) for step in steps))
    if answer.marks is None:
        raise UsageError("--around-spike needs checkpoints: give --every STEPS, or --tree DIR")
    return answer.marks
