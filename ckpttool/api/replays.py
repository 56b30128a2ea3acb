"""Replay a policy over training logs, and recommend thresholds from them."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ckpttool.api.evidence import no_spike, saves_of
from ckpttool.api.logs import LogPass, detector_events, reading_of, together
from ckpttool.api.policies import policy_of, settings_of
from ckpttool.decide.calibrate import calibrate as recommend
from ckpttool.decide.policies.features import FeaturePolicy
from ckpttool.decide.policies.skip import SkipPolicy
from ckpttool.decide.replay import replay as run
from ckpttool.decide.rewind import advise_after_stop, advise_spike, find_spike, sample_clock
from ckpttool.decide.timeline import mark_checkpoints, timeline
from ckpttool.domain.advice import SampleClock, SpikeAdvice, StopAdvice
from ckpttool.domain.health_events import HealthEvent, HealthTimeline, MarkState, ReplayResult, SavedCheckpoint
from ckpttool.domain.log_answer import CalibrationAnswer, LogReading, ReplayAnswer
from ckpttool.domain.log_question import STDIN, LogQuestion, ReplayQuestion, SpikeQuestion
from ckpttool.domain.metrics import NoteKind, StepMetrics
from ckpttool.domain.units import Step
from ckpttool.errors import UsageError

if TYPE_CHECKING:
    from ckpttool.api.trees import Tree
    from ckpttool.decide.policies.base import HealthPolicy
    from ckpttool.domain.asd import AsdEvent

_STAND_IN = (
    "the logs hold no line of a detector, so the square of the global norm is judged: a stand-in for the largest "
    "gradient of each parameter, which the detector sees"
)


def replay(question: ReplayQuestion, tree: Tree | None = None) -> ReplayAnswer:
    """Tell what a policy would have done over logs, in one pass and in bounded memory.

    Args:
        question: The logs, the policy and its settings.
        tree: Its checkpoints are set against the timeline; scanned with sizes, for the times of their saves.

    Raises:
        UsageError: A log is not there, a setting is not one of this policy, or there is no spike to go around.
        IncompleteError: Whether there is one cannot be known: a log could not be read to its end, or shows no step.
    """
    policy = policy_of(question)
    logs = LogPass(question.logs)
    trace = _Trace(frozenset() if tree is None else {one.step for one in tree.inventory.checkpoints})
    events = _events(policy, logs)
    if events:
        result = run(_Logged(policy, events), ())
        if tree is not None and STDIN not in logs.names:
            deque(trace.watch(LogPass(question.logs).steps()), maxlen=0)  # for the times of the saves
    else:
        result = run(policy, trace.watch(logs.steps()))
        if isinstance(policy, FeaturePolicy):
            result = replace(result, notes=(_STAND_IN, *result.notes))
    # A step that the trainer itself skipped changed no weight.
    harmful = [event for event in result.events if event.step is None or event.step not in trace.skipped]
    line = timeline(harmful, trace.ascending(), margin_minutes=question.margin_minutes)
    reading = logs.reading()
    saves = None if tree is None else saves_of(tree.inventory, trace.saved)
    way = None if question.spike is None else _Way(question.spike, policy, trace, line)
    return ReplayAnswer(
        settings=settings_of(policy),
        result=result,
        reading=reading,
        timeline=line,
        marks=None if saves is None else mark_checkpoints(line, saves),
        advice=None if way is None else way.advice(result, reading, saves),
    )


def _events(policy: HealthPolicy, logs: LogPass) -> tuple[AsdEvent, ...]:
    """Return what detectors logged, where that is what shall be judged."""
    if not isinstance(policy, FeaturePolicy):
        return ()
    events, problems = detector_events(logs.names)
    if not events and STDIN in logs.names:
        raise UsageError("the log shows no event of a detector; to judge its norms give a file instead of -")
    for problem in problems if events else ():
        logs.keep_problem(problem)
    return events


class _Logged:
    """A detector's own events as what a policy notices."""

    def __init__(self, policy: HealthPolicy, events: tuple[AsdEvent, ...]) -> None:
        if not isinstance(policy, FeaturePolicy):
            raise TypeError(policy)
        self._policy = policy
        self._events = events

    @property
    def name(self) -> str:
        return self._policy.name

    def judge(self, metrics: Iterable[StepMetrics]) -> Iterator[HealthEvent]:
        del metrics  # what is judged was logged beside them
        return self._policy.judge_events(self._events)


class _Trace:
    """What is needed of the steps that pass by: their numbers, the samples they count, and those of the saves."""

    def __init__(self, wanted: frozenset[Step | None] | set[Step | None]) -> None:
        self.steps = array("q")
        self.saved: list[StepMetrics] = []
        self.skipped: set[Step] = set()
        self.clock: SampleClock | None = None
        self._wanted = wanted
        self._before: StepMetrics | None = None

    def watch(self, metrics: Iterable[StepMetrics]) -> Iterator[StepMetrics]:
        for row in metrics:
            self.steps.append(row.step)
            if row.skipped:
                self.skipped.add(row.step)
            if row.step in self._wanted:
                self.saved.append(row)
            if self.clock is None and row.consumed_samples is not None:
                self.clock = sample_clock([row] if self._before is None else [self._before, row])
                self._before = row
            yield row

    def ascending(self) -> Sequence[Step]:
        """Return the steps in order: a log goes back where training was resumed."""
        ordered = all(self.steps[index] < self.steps[index + 1] for index in range(len(self.steps) - 1))
        return cast("Sequence[Step]", self.steps if ordered else array("q", sorted(self.steps)))


class _Way:
    """Finds the way around a spike, or on after a stop."""

    def __init__(self, wish: SpikeQuestion, policy: HealthPolicy, trace: _Trace, line: HealthTimeline) -> None:
        self._wish = wish
        self._policy = policy
        self._trace = trace
        self._line = line

    def advice(
        self, result: ReplayResult, reading: LogReading, saves: list[SavedCheckpoint] | None
    ) -> SpikeAdvice | StopAdvice:
        known = self._saves(saves)
        stop = self._stop(result, reading)
        if stop is not None:
            good = [save.step for save in known if save.step is not None]
            return advise_after_stop(stop[0], good, count=stop[1], clock=self._trace.clock)
        spike = find_spike(self._line, self._wish.around)
        if spike is None:
            raise no_spike(reading, _threshold(self._policy))
        marks = mark_checkpoints(self._line, known)
        good = [mark.step for mark in marks if mark.state is not MarkState.SUSPECT and mark.step is not None]
        return advise_spike(spike, good, newest=Step(max(self._trace.steps)), clock=self._trace.clock)

    def _saves(self, saves: list[SavedCheckpoint] | None) -> list[SavedCheckpoint]:
        every = self._wish.every
        if every is not None:
            last = max(self._trace.steps, default=0)
            return [SavedCheckpoint(name=str(step), step=Step(step)) for step in range(every, last + 1, every)]
        if saves is None:
            raise UsageError("--around-spike needs checkpoints: give --every STEPS, or --health-timeline DIR")
        return saves

    def _stop(self, result: ReplayResult, reading: LogReading) -> tuple[Step, int] | None:
        """Return where the policy would have ended the training, or where the log says that it ended."""
        if result.stopped_at is not None and isinstance(self._policy, SkipPolicy):
            return result.stopped_at, self._policy.count_threshold
        stops = [note for note in reading.notes if note.kind is NoteKind.COUNT_STOP and note.step is not None]
        last = max(self._trace.steps, default=0)
        if self._wish.around is None and stops and stops[-1].step is not None and stops[-1].step >= last:
            return stops[-1].step, stops[-1].count or 1
        return None


def _threshold(policy: HealthPolicy) -> float | None:
    return policy.threshold if isinstance(policy, SkipPolicy) else None


def calibrate(question: LogQuestion, *, warm_up: int | None = None) -> CalibrationAnswer:
    """Recommend thresholds from logs.

    Args:
        question: The logs.
        warm_up: Steps at the start to leave out; None: a tenth.

    Raises:
        UsageError: A log is not there.
    """
    log = together(question)
    if log is None:
        raise UsageError("give a training log")
    return CalibrationAnswer(calibration=recommend(log.metrics, warm_up=warm_up), reading=reading_of(log))
