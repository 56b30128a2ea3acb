"""What a policy would have done over a log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ckpttool.decide.policies.base import Policy, judge
from ckpttool.domain.health_events import LOSES_UPDATE, EventKind, HealthEvent, ReplayResult, SkippedSpan
from ckpttool.domain.metrics import StepMetrics
from ckpttool.domain.units import Step

ONLY_AN_OBSERVATION = (
    "from step {step} on the log is only an observation: the training that wrote it applied that update, so with this "
    "policy every later norm would have been another one"
)


def replay(policy: Policy, metrics: Iterable[StepMetrics]) -> ReplayResult:
    """Return what the policy notices, what it costs, and how far the log can tell.

    Args:
        policy: The rule.
        metrics: In the order of the log; consumed once, in bounded memory.
    """
    seen = _Seen()
    return _told(policy.name, tuple(judge(policy, seen.watch(metrics))), seen)


def logged(policy: str, events: Iterable[HealthEvent]) -> ReplayResult:
    """Return what a policy notices in what was logged beside the steps, of which none is judged.

    Args:
        policy: What users call it.
        events: What it notices.
    """
    return _told(policy, tuple(events), _Seen())


def _told(policy: str, events: tuple[HealthEvent, ...], seen: _Seen) -> ReplayResult:
    lost = [(event.step, event.value) for event in events if event.kind in LOSES_UPDATE and event.step is not None]
    stop = next((event.step for event in events if event.kind is EventKind.STOP), None)
    first_lost = lost[0][0] if lost else None
    index = None if seen.last is None else seen.last - len({step for step, _ in lost})
    return ReplayResult(
        policy=policy,
        first_step=seen.first,
        last_step=seen.last,
        steps_seen=seen.steps,
        steps_unseen=seen.unseen,
        spans=_spans(lost),
        stopped_at=stop,
        updates_lost=len(lost),
        learning_rate_index=index,
        events=events,
        notes=tuple(_notes(seen, events, first_lost)),
    )


@dataclass(slots=True)
class _Seen:
    """Counts the steps on their way to the policy."""

    first: Step | None = None
    last: Step | None = None
    steps: int = 0
    unseen: int = 0
    without_norm: int = 0
    said_skipped: set[Step] = field(default_factory=set)

    def watch(self, metrics: Iterable[StepMetrics]) -> Iterator[StepMetrics]:
        for row in metrics:
            if self.first is None:
                self.first = row.step
            elif self.last is not None and row.step > self.last + 1:
                self.unseen += row.step - self.last - 1
            self.last = row.step
            self.steps += 1
            self.without_norm += row.global_norm is None
            if row.skipped:
                self.said_skipped.add(row.step)
            yield row


def _notes(seen: _Seen, events: tuple[HealthEvent, ...], first_lost: Step | None) -> Iterator[str]:
    if first_lost is not None and first_lost not in seen.said_skipped:
        yield ONLY_AN_OBSERVATION.format(step=first_lost)
    if seen.unseen:
        yield f"the log does not show {seen.unseen} of the steps between; what is in a row there cannot be decided"
    if seen.without_norm:
        yield f"{seen.without_norm} steps show no norm; they are judged as if they were not in the log"
    if seen.first is not None and seen.first > 1:
        yield f"the log begins at step {seen.first}: updates lost before are not known"
    yield from (event.message for event in events if event.kind in {EventKind.UNDECIDED, EventKind.RESTART})


def _spans(lost: list[tuple[Step, float | None]]) -> tuple[SkippedSpan, ...]:
    """Return neighbouring steps together."""
    spans: list[SkippedSpan] = []
    for step, norm in lost:
        peak = norm if norm is not None and math.isfinite(norm) else None
        if spans and step == spans[-1].last + 1:
            before = spans.pop()
            peaks = [each for each in (before.peak, peak) if each is not None]
            first, updates = before.first, before.updates + 1
            spans.append(SkippedSpan(first=first, last=step, updates=updates, peak=max(peaks, default=None)))
        else:
            spans.append(SkippedSpan(first=step, last=step, updates=1, peak=peak))
    return tuple(spans)
