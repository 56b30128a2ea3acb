"""Replay a policy over training logs, and recommend thresholds from them."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ckpttool.api.evidence import no_spike, saves_of
from ckpttool.decide.asd.features import FeaturePolicy
from ckpttool.decide.calibrate import calibrate as recommend
from ckpttool.decide.log_runs import course
from ckpttool.decide.policies.base import Policy, judge
from ckpttool.decide.policies.registry import policy_of, settings_of
from ckpttool.decide.policies.skip import SkipPolicy
from ckpttool.decide.replay import logged
from ckpttool.decide.replay import replay as run
from ckpttool.decide.rewind import advise_after_stop, advise_spike, find_spike, sample_clock
from ckpttool.decide.timeline import mark_by_start, mark_checkpoints, timeline
from ckpttool.domain.advice import SampleClock, SpikeAdvice, StopAdvice
from ckpttool.domain.health_events import (
    CheckpointMark,
    HealthTimeline,
    MarkState,
    ReplayResult,
    SavedCheckpoint,
)
from ckpttool.domain.log_answer import CalibrationAnswer, LogReading, ReplayAnswer
from ckpttool.domain.log_question import STDIN, LogQuestion, ReplayQuestion, SpikeQuestion
from ckpttool.domain.metrics import LogAttempt, NoteKind, StepMetrics
from ckpttool.domain.units import Step
from ckpttool.errors import UsageError
from ckpttool.logs.asd_events import detector_events
from ckpttool.logs.log_pass import LogPass
from ckpttool.trainers.registry import log_reader

if TYPE_CHECKING:
    from ckpttool.api.trees import Tree
    from ckpttool.domain.asd import AsdEvent
    from ckpttool.domain.checkpoint import Inventory

_STAND_IN = (
    "the logs hold no line of a detector, so the square of the global norm is judged: a stand-in for the largest "
    "gradient of each parameter, which the detector sees"
)


_CALIBRATES = ("global_norm", "embedding_local_norm")
"""What thresholds are taken from; of several logs the time also tells which one is the later."""


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
    reader = log_reader(question.logs.columns)
    logs = LogPass(reader, question.logs.patterns, keep=tree is not None)
    shown = logs
    trace = _Trace()
    events = _events(policy, logs)
    if events and isinstance(policy, FeaturePolicy):
        result = logged(policy.name, policy.judge_events(events))
        if tree is not None and STDIN not in logs.names:
            shown = LogPass(reader, question.logs.patterns, keep=True)
            deque(trace.watch(shown.steps()), maxlen=0)  # for the times of the saves
    else:
        result = run(policy, trace.watch(logs.steps()))
        if isinstance(policy, FeaturePolicy):
            result = replace(result, notes=(_STAND_IN, *result.notes))
    # A step that the trainer itself skipped changed no weight.
    harmful = [event for event in result.events if event.step is None or event.step not in trace.skipped]
    line = timeline(harmful, trace.ascending(), margin_minutes=question.margin_minutes)
    reading = logs.reading()
    marks = (
        None
        if tree is None
        else _Marks(tree.inventory, shown.attempts(), line, None if events else policy, question.margin_minutes)
    )
    way = None if question.spike is None else _Way(question.spike, policy, trace, line)
    return ReplayAnswer(
        settings=settings_of(policy),
        result=result,
        reading=reading,
        timeline=line,
        marks=None if marks is None else marks.all(),
        advice=None if way is None else way.advice(result, reading, marks),
    )


def _events(policy: Policy, logs: LogPass) -> tuple[AsdEvent, ...]:
    """Return what detectors logged, where that is what shall be judged."""
    if not isinstance(policy, FeaturePolicy):
        return ()
    events, problems = detector_events(logs.names)
    if not events and STDIN in logs.names:
        raise UsageError("the log shows no event of a detector; to judge its norms give a file instead of -")
    for problem in problems if events else ():
        logs.keep_problem(problem)
    return events


class _Trace:
    """What is needed of the steps that pass by: their numbers, and the samples they count."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.skipped: set[Step] = set()
        self.clock: SampleClock | None = None
        self._before: StepMetrics | None = None

    def watch(self, metrics: Iterable[StepMetrics]) -> Iterator[StepMetrics]:
        for row in metrics:
            self.steps.append(row.step)
            if row.skipped:
                self.skipped.add(row.step)
            if self.clock is None and row.consumed_samples is not None:
                self.clock = sample_clock([row] if self._before is None else [self._before, row])
                self._before = row
            yield row

    def ascending(self) -> Sequence[Step]:
        """Return the steps in order: a log goes back where training was resumed."""
        ordered = all(self.steps[index] < self.steps[index + 1] for index in range(len(self.steps) - 1))
        return cast("Sequence[Step]", self.steps if ordered else array("q", sorted(self.steps)))


class _Marks:
    """Sets the checkpoints of a tree against what a policy makes of the start of the training that saved them."""

    def __init__(
        self,
        inventory: Inventory,
        attempts: tuple[LogAttempt, ...] | None,
        line: HealthTimeline,
        policy: Policy | None,
        margin_minutes: float,
    ) -> None:
        self._saves, self._homes = saves_of(inventory, attempts)
        self._attempts = attempts or ()
        self._line = line
        self._policy = policy  # None: what is suspect is told by times, whichever start it was
        self._margin_minutes = margin_minutes
        self._courses: dict[int, HealthTimeline] = {}

    def all(self) -> tuple[CheckpointMark, ...]:
        return mark_by_start(self._line, self._saves, self._homes, self._line_of)

    def _line_of(self, attempt: int | None) -> HealthTimeline:
        if self._policy is None or (attempt is not None and len(self._attempts) == 1):
            return self._line
        if attempt is None:
            return HealthTimeline(intervals=())
        if attempt not in self._courses:
            rows = course(self._attempts, attempt)
            skipped = {row.step for row in rows if row.skipped}
            harmful = [event for event in judge(self._policy, rows) if event.step is None or event.step not in skipped]
            self._courses[attempt] = timeline(harmful, [row.step for row in rows], margin_minutes=self._margin_minutes)
        return self._courses[attempt]


class _Way:
    """Finds the way around a spike, or on after a stop."""

    def __init__(self, wish: SpikeQuestion, policy: Policy, trace: _Trace, line: HealthTimeline) -> None:
        self._wish = wish
        self._policy = policy
        self._trace = trace
        self._line = line

    def advice(self, result: ReplayResult, reading: LogReading, tree: _Marks | None) -> SpikeAdvice | StopAdvice:
        known = self._known(tree)
        stop = self._stop(result, reading)
        if stop is not None:
            good = [mark.step for mark in known if mark.step is not None]
            return advise_after_stop(stop[0], good, count=stop[1], clock=self._trace.clock)
        spike = find_spike(self._line, self._wish.around)
        if spike is None:
            raise no_spike(reading, _threshold(self._policy))
        good = [mark.step for mark in known if mark.state is not MarkState.SUSPECT and mark.step is not None]
        return advise_spike(spike, good, newest=Step(max(self._trace.steps)), clock=self._trace.clock)

    def _known(self, tree: _Marks | None) -> tuple[CheckpointMark, ...]:
        every = self._wish.every
        if every is not None:
            last = max(self._trace.steps, default=0)
            saves = (SavedCheckpoint(name=str(step), step=Step(step)) for step in range(every, last + 1, every))
            return mark_checkpoints(self._line, saves)
        if tree is None:
            raise UsageError("--around-spike needs checkpoints: give --every STEPS, or --health-timeline DIR")
        return tree.all()

    def _stop(self, result: ReplayResult, reading: LogReading) -> tuple[Step, int] | None:
        """Return where the policy would have ended the training, or where the log says that it ended."""
        if result.stopped_at is not None and isinstance(self._policy, SkipPolicy):
            return result.stopped_at, self._policy.count_threshold
        stops = [note for note in reading.notes if note.kind is NoteKind.COUNT_STOP and note.step is not None]
        last = max(self._trace.steps, default=0)
        if self._wish.around is None and stops and stops[-1].step is not None and stops[-1].step >= last:
            return stops[-1].step, stops[-1].count or 1
        return None


def _threshold(policy: Policy) -> float | None:
    return policy.threshold if isinstance(policy, SkipPolicy) else None


def calibrate(question: LogQuestion, *, warm_up: int | None = None) -> CalibrationAnswer:
    """Recommend thresholds from logs.

    Args:
        question: The logs.
        warm_up: Steps at the start to leave out; None: a tenth.

    Raises:
        UsageError: A log is not there.
    """
    reader = log_reader(question.columns)
    several = len(reader.expand(question.patterns)) > 1
    log = reader.merged(question.patterns, keep=(*_CALIBRATES, "time") if several else _CALIBRATES)
    if log is None:
        raise UsageError("give a training log")
    return CalibrationAnswer(calibration=recommend(log.metrics, warm_up=warm_up), reading=LogReading.of(log))
