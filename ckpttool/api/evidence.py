"""What logs have to say about which checkpoint to resume from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckpttool.decide.asd.features import FeaturePolicy
from ckpttool.decide.log_evidence import (
    large_spikes,
    log_findings,
    no_log,
    no_steps,
    only_up_to,
    saved,
    trained_since,
    with_judgements,
    with_marks,
)
from ckpttool.decide.log_runs import Home, course, homes, shown
from ckpttool.decide.policies.base import judge as judged_by
from ckpttool.decide.policies.robust_z import RobustZPolicy
from ckpttool.decide.policies.skip import SkipPolicy
from ckpttool.decide.rewind import advise_after_stop, advise_spike, find_spike, sample_clock
from ckpttool.decide.timeline import mark_by_start, timeline
from ckpttool.domain.advice import Choice, RewindRecipe, SpikeAdvice, StopAdvice
from ckpttool.domain.asd import AsdConfig
from ckpttool.domain.checkpoint import Checkpoint, Inventory
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.health_events import HealthReport, HealthTimeline, SavedCheckpoint, SuspectInterval, SuspectKind
from ckpttool.domain.log_answer import LogReading
from ckpttool.domain.metrics import (
    LocalTime,
    LogAttempt,
    LogNote,
    NoteKind,
    StepMetrics,
    TrainingLog,
    parse_local_time,
)
from ckpttool.domain.plan import NoResumePoint, ResumePoint
from ckpttool.domain.units import Step
from ckpttool.errors import CkptToolError, IncompleteError, UsageError
from ckpttool.logs.asd_events import detector_events
from ckpttool.records.timeline_json import read_timeline
from ckpttool.trainers.mindformers.embedding_health import judge_health
from ckpttool.trainers.registry import log_reader

if TYPE_CHECKING:
    from ckpttool.domain.asd import AsdEvent
    from ckpttool.domain.log_question import EvidenceQuestion

Pick = Callable[[Inventory], ResumePoint | NoResumePoint]
"""Chooses from a tree whose checkpoints carry the reasons against them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the logs say, and the tree with what they hold against its checkpoints."""

    question: EvidenceQuestion
    inventory: Inventory
    strikes_only: Inventory
    """Without the reasons that are spikes: after a stop the skipped steps have changed no weight."""
    log: TrainingLog | None
    line: HealthTimeline
    report: HealthReport | None
    """Where a threshold was given."""
    unheard: tuple[Finding, ...]
    """What was asked of the logs and none of them tells."""

    def findings(self, chosen: Checkpoint | None) -> tuple[Finding, ...]:
        """Say what in the logs cannot be read, where they and the record disagree, and what could not be judged."""
        found: list[Finding] = []
        if self.log is not None:
            reading = LogReading.of(self.log)
            gravest_first = sorted(reading.problems, key=lambda each: not each.ends_the_log)
            problems = ((each.source, each.line, each.reason) for each in gravest_first[:3])
            found += log_findings(problems, reading.problem_count)
        if not any(one.severity is Severity.UNKNOWN for one in found):
            found += self.unheard
        if self.report is not None:
            found += (replace(each, severity=Severity.NOTE) for each in self.report.findings)
            judged = zip(self.inventory.checkpoints, self.report.judgements, strict=True)
            found += (
                Finding(code=Code.HEALTH_UNKNOWN, severity=Severity.NOTE, message=f"{one.name}: {judgement.note}")
                for one, judgement in judged
                if chosen is not None and _same(one, chosen) and judgement.note is not None
            )
        return (*found, *self._since(chosen))

    def _since(self, chosen: Checkpoint | None) -> list[Finding]:
        attempts = None if self.log is None else self.log.attempts
        if chosen is None or not attempts:
            return []
        saves = [saved(one, self.inventory.layout) for one in self.inventory.checkpoints]
        places = zip(self.inventory.checkpoints, saves, homes(saves, attempts), strict=True)
        told = (trained_since(save, home, attempts) for one, save, home in places if _same(one, chosen))
        return [one for one in told if one is not None]


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    return one.shards == other.shards


def gather(inventory: Inventory, question: EvidenceQuestion, *, stages: int | None, ignore: bool) -> Evidence:
    """Read the logs and hold what they say against the checkpoints.

    Args:
        inventory: With recorded health; with sizes and times where strikes are told by time.
        question: Which logs, and how to judge.
        stages: Pipeline stages, where they are known.
        ignore: Health is no reason.

    Raises:
        UsageError: A log is not there, or cannot be meant.
    """
    reader = log_reader(question.logs.columns)
    lines = {name: read_timeline(name) for name in reader.expand(question.timeline)}
    logs = tuple(name for name, line in lines.items() if line is None)
    beside = inventory.root if question.threshold is not None or question.spike is not None else None
    log = reader.merged((*question.logs.patterns, *logs), beside)
    if log is None and question.spike is not None:
        raise UsageError("there is no training log beside the checkpoints: give --log")
    logged, _ = detector_events(logs)
    log = None if log is None else reader.without_detectors(log, {event.source for event in logged})
    timelines = _Timelines(log, logged, question, [one for one in lines.values() if one is not None])
    report = None
    judged = inventory
    if question.threshold is not None:
        report = judge(inventory, log, question.threshold, stages)
        judged = with_judgements(inventory, report.judgements, threshold=question.threshold, ignore=ignore)
    strikes_only = judged if ignore else _against(judged, timelines, inventory, strikes=True)
    both = judged if ignore else _against(strikes_only, timelines, inventory, strikes=False)
    told = bool(logged) or len(logs) < len(lines)
    return Evidence(
        question=question,
        inventory=both,
        strikes_only=strikes_only,
        log=log,
        line=timelines.line,
        report=report,
        unheard=_unheard(question, log, told=told),
    )


def _unheard(question: EvidenceQuestion, log: TrainingLog | None, *, told: bool) -> tuple[Finding, ...]:
    """Say that logs were to have a say, and show nothing that could be one.

    Args:
        question: What was asked of them.
        log: All of them together.
        told: Whether what was given as a timeline tells of suspect stretches, or that there are none, without steps.
    """
    if log is None and question.threshold is not None:
        return (no_log(),)
    if log is None or log.metrics or (question.threshold is None and (told or not question.timeline)):
        return ()
    return (no_steps(log.sources),)


def judge(inventory: Inventory, log: TrainingLog | None, threshold: float | None, stages: int | None) -> HealthReport:
    """Judge every checkpoint of a tree by the log and by what is recorded."""
    saves = [saved(one, inventory.layout) for one in inventory.checkpoints]
    known = stages if stages is not None else _stages(inventory)
    return judge_health(saves, () if log is None else log.attempts, threshold=threshold, pipeline_stages=known)


def _stages(inventory: Inventory) -> int | None:
    """Return 1 where there is but one rank; more than that the files do not tell."""
    sizes = {one.topology.world_size for one in inventory.checkpoints}
    return 1 if sizes == {1} else None


class _Timelines:
    """What is suspect by the logs: in all, and on the course of each start of the training that they show."""

    def __init__(
        self,
        log: TrainingLog | None,
        logged: tuple[AsdEvent, ...],
        question: EvidenceQuestion,
        known: list[HealthTimeline],
    ) -> None:
        self.log = log
        self._limit = question.spike_threshold
        self._known = tuple(interval for line in known for interval in line.intervals)
        self._strikes: tuple[SuspectInterval, ...] = ()
        if logged:
            noticed = FeaturePolicy(config=AsdConfig(enable=True)).judge_events(logged)
            self._strikes = timeline(noticed, margin_minutes=question.margin_minutes).intervals
        self._wanted = bool(question.timeline) or question.spike is not None
        self.line = self._with(() if log is None else log.metrics)
        self._courses: dict[int, HealthTimeline] = {}

    def of(self, attempt: int | None) -> HealthTimeline:
        """Return what is suspect on the course of an attempt; of None what the logs do not tell by steps."""
        if attempt is None or self.log is None or self.log.attempts is None:
            return self._with(())
        if attempt not in self._courses:
            whole = len(self.log.attempts) == 1
            self._courses[attempt] = self.line if whole else self._with(course(self.log.attempts, attempt))
        return self._courses[attempt]

    def _with(self, rows: Sequence[StepMetrics]) -> HealthTimeline:
        spikes: tuple[SuspectInterval, ...] = ()
        if rows and self._wanted:
            # A step that the trainer skipped changed no weight.
            applied = (row for row in rows if not row.skipped)
            if self._limit is None:
                events = large_spikes(applied)
            else:
                events = judged_by(SkipPolicy(threshold=self._limit, count_threshold=sys.maxsize), applied)
            spikes = timeline(events, [row.step for row in rows]).intervals
        return HealthTimeline(intervals=(*self._known, *spikes, *self._strikes))


def _against(judged: Inventory, timelines: _Timelines, tree: Inventory, *, strikes: bool) -> Inventory:
    def kept(line: HealthTimeline) -> HealthTimeline:
        some = tuple(one for one in line.intervals if (one.kind is not SuspectKind.SPIKE) is strikes)
        return HealthTimeline(intervals=some)

    log = timelines.log
    saves, found = saves_of(tree, None if log is None else log.attempts)
    marks = mark_by_start(kept(timelines.line), saves, found, lambda place: kept(timelines.of(place)))
    return with_marks(judged, marks, Code.SAVED_AFTER_STRIKE if strikes else Code.SAVED_IN_SPIKE)


def saves_of(
    inventory: Inventory, attempts: Sequence[LogAttempt] | None
) -> tuple[list[SavedCheckpoint], tuple[Home, ...]]:
    """Return the checkpoints with the time of their save: the log's own at that step, else the files'; and their homes.

    A copy may have given the files a later time. That errs on the safe side: what was saved before a strike may then
    look as if it was saved after it, never the other way round.
    """
    saves = [saved(one, inventory.layout) for one in inventory.checkpoints]
    found = homes(saves, attempts)
    timed = []
    for one, save, home in zip(inventory.checkpoints, saves, found, strict=True):
        row = None if home.known is None else shown(save, home, attempts).row
        timed.append(replace(save, time=_time(one, None if row is None else row.time)))
    return timed, found


def _time(checkpoint: Checkpoint, told: str | None) -> LocalTime | None:
    if told is not None:
        try:
            return parse_local_time(told)
        except ValueError:  # a column of times may hold anything
            pass
    times = [shard.modified_ns for shard in checkpoint.shards if shard.modified_ns is not None]
    if not times:
        return None
    latest = max(times) / 1e9
    return LocalTime(datetime.fromtimestamp(latest).astimezone().replace(tzinfo=timezone.utc).timestamp())


def go_around(evidence: Evidence, pick: Pick) -> tuple[ResumePoint | NoResumePoint, SpikeAdvice | StopAdvice]:
    """Choose a checkpoint from which the training gets around a spike, or on after a stop.

    Returns:
        What to resume from, and why. Where waiting is better than going back, that is what would be resumed anyway.

    Raises:
        UsageError: The log shows neither a spike nor a stop.
        IncompleteError: The same, of a log that could not be read to its end.
    """
    log, wish = evidence.log, evidence.question.spike
    if log is None or wish is None:
        raise AssertionError("gather() has read a log, for a spike was asked for")
    clock = sample_clock(log.metrics)
    stop = None if wish.around is not None else last_stop(log)
    if stop is not None and stop.step is not None:
        point = pick(only_up_to(evidence.strikes_only, stop.step, "where training stopped"))
        return point, advise_after_stop(stop.step, _steps(point), count=stop.count or 1, clock=clock)
    spike = find_spike(evidence.line, wish.around)
    if spike is None:
        raise no_spike(LogReading.of(log), evidence.question.spike_threshold)
    recipe = RewindRecipe()
    limit = Step(spike.onset - recipe.margin)
    why = f"{recipe.margin} steps before the spike of step {spike.onset}"
    point = pick(only_up_to(evidence.inventory, limit, why))
    advice = advise_spike(spike, _steps(point), newest=log.metrics[-1].step, clock=clock, recipe=recipe)
    return (point if advice.choice is Choice.REWIND else pick(evidence.inventory)), advice


def _steps(point: ResumePoint | NoResumePoint) -> list[Step]:
    known = point.checkpoint.step if isinstance(point, ResumePoint) else None
    return [] if known is None else [known]


def last_stop(log: TrainingLog) -> LogNote | None:
    """Return where too many steps in a row ended the training; None where it went on since."""
    stops = [note for note in log.notes if note.kind is NoteKind.COUNT_STOP and note.step is not None]
    if not stops or not log.metrics or (stops[-1].step or 0) < log.metrics[-1].step:
        return None
    return stops[-1]


def no_spike(reading: LogReading, threshold: float | None) -> CkptToolError:
    """Return the error that says that there is no spike, and what else to try; or that nobody can know."""
    if reading.unreadable or not reading.steps:
        unread = next((f"{each.source}: {each.reason}" for each in reading.problems if each.ends_the_log), None)
        why = unread or f"{', '.join(reading.sources)}: no training step was found"
        return IncompleteError(f"{why}; whether there was a spike is unknown")
    if threshold is not None:
        return UsageError(f"no step of the log has a global norm of {threshold:g} or more")
    needed = RobustZPolicy().warm_up
    few = f"; a z-score needs more than {needed} steps, and it shows {reading.steps}" if reading.steps <= needed else ""
    return UsageError(f"the log shows no spike{few}; a threshold of the global norm tells what is one")
