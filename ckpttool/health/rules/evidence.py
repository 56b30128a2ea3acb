"""Evidence against checkpoints in logs, as reasons for `choose`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckpttool.core.decide.recorded_health import IGNORE_HEALTH
from ckpttool.core.decide.resume import Pick
from ckpttool.core.domain.advice import Choice, SpikeAdvice, StopAdvice
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.core.domain.finding import Code, Finding, Row, Severity, note, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.metrics import LocalTime, LogAttempt, LogProblem, StepMetrics, TrainingLog, local_time_of
from ckpttool.core.domain.plan import NoResumePoint, ResumePoint
from ckpttool.core.domain.question import EvidenceQuestion
from ckpttool.core.domain.units import Step
from ckpttool.health.asd.features import FeaturePolicy
from ckpttool.health.findings import HealthCode
from ckpttool.health.model.asd import AsdConfig, AsdEvent
from ckpttool.health.model.events import (
    CheckpointMark,
    HealthEvent,
    HealthJudgement,
    HealthReport,
    HealthTimeline,
    MarkState,
    SavedCheckpoint,
    SuspectInterval,
    SuspectKind,
    union,
)
from ckpttool.health.model.reading import LogReading
from ckpttool.health.policies.base import Coverage, judge
from ckpttool.health.policies.robust_z import RobustZPolicy
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.rules.detour import (
    RewindRecipe,
    advise_after_stop,
    advise_spike,
    ended_in_skips,
    finite_losses,
    loss_after,
    only_up_to,
    sample_clock,
    skipped_at_end,
    spike_to_pass,
    without_spikes,
)
from ckpttool.health.rules.lost import with_log
from ckpttool.health.rules.runs import Home, homes, logged_step
from ckpttool.health.rules.timeline import LineageTimelines, timeline

LARGE_SPIKE = 2.0
"""Factor above the robust limit at which a norm counts against a checkpoint.

A smaller excess moves the weights by less than two usual steps; and a new batch size or learning rate may permanently
raise the level by as much."""


def saved(checkpoint: Checkpoint) -> SavedCheckpoint:
    """Return the facts about a checkpoint for policies; the checkpoint already has its recorded health."""
    return SavedCheckpoint(
        name=checkpoint.name,
        step=checkpoint.step,
        recorded=checkpoint.health,
        prefix=checkpoint.prefix,
        run=None if checkpoint.label is None else checkpoint.run,
        records_measured_health=checkpoint.records_measured_health,
        is_marked=checkpoint.mark is not None,
    )


def saves_of(
    inventory: Inventory, attempts: Sequence[LogAttempt] | None, written: Mapping[CheckpointKey, LocalTime]
) -> tuple[list[SavedCheckpoint], tuple[Home, ...]]:
    """Return the checkpoints with the starts that saved them, and save times from the log, otherwise from the files.

    A copy may have given the files a later time. That is safe: a checkpoint saved before a strike may appear to be
    saved after it, but never the reverse.

    Args:
        inventory: The tree; scanned with sizes.
        attempts: The starts in the logs.
        written: When each checkpoint's files were written, on the clock of the logs.
    """
    saves = [saved(checkpoint) for checkpoint in inventory.checkpoints]
    homes_found = homes(saves, attempts)
    timed = []
    for checkpoint, save, home in zip(inventory.checkpoints, saves, homes_found, strict=True):
        row = None if home.known is None else logged_step(save, home, attempts).row
        time = None if row is None else local_time_of(row.time)
        timed.append(replace(save, time=written.get(checkpoint.key) if time is None else time))
    return timed, homes_found


def large_spikes(metrics: Iterable[StepMetrics], coverage: Coverage | None = None) -> Iterator[HealthEvent]:
    """Yield the spikes that count against a checkpoint, by the robust z-score, of any duration.

    A spike ends when the norm returns to normal. The policy itself treats a long spike as a new level, so that it
    cannot block permanently; but a run that has diverged for fifty steps has not recovered.

    Args:
        metrics: In the order of the log.
        coverage: Records which steps were judged.
    """
    for event in judge(RobustZPolicy(level_shift=sys.maxsize), metrics, coverage):
        value, limit = event.value, event.limit
        if value is None or limit is None or value >= LARGE_SPIKE * limit:
            yield event


def with_judgements(
    inventory: Inventory, judgements: Sequence[HealthJudgement], *, threshold: float | None, ignore: bool
) -> Inventory:
    """Set each checkpoint's health from the log, if the log shows it; a norm that is too high is a reason against it.

    Args:
        inventory: The inventory, with recorded health.
        judgements: One judgement per checkpoint, in the same order.
        threshold: The threshold.
        ignore: Whether to ignore health as a reason.
    """
    pairs = zip(inventory.checkpoints, judgements, strict=True)
    return replace(inventory, checkpoints=tuple(_judged(*pair, threshold=threshold, ignore=ignore) for pair in pairs))


def _judged(checkpoint: Checkpoint, judgement: HealthJudgement, *, threshold: float | None, ignore: bool) -> Checkpoint:
    if judgement.source != "log":
        return replace(checkpoint, health=judgement.health)
    if judgement.health is not Health.UNHEALTHY or ignore:
        return replace(checkpoint, health=judgement.health)
    norm = judgement.embedding_local_norm
    return _against(
        checkpoint,
        suspect(
            HealthCode.NORM_ABOVE_THRESHOLD,
            f"the log has the embedding local norm {norm:g} at its save, and the threshold is {threshold:g}",
            expected=f"below {threshold:g}",
            actual=f"{norm:g}",
            remedy=IGNORE_HEALTH,
        ),
    )


def with_marks(inventory: Inventory, marks: Sequence[CheckpointMark], code: Row) -> Inventory:
    """Reject each checkpoint saved during suspect steps.

    Args:
        inventory: The tree.
        marks: One mark for each checkpoint, in the same order.
        code: The kind of the suspect part.
    """
    checkpoints = []
    for checkpoint, mark in zip(inventory.checkpoints, marks, strict=True):
        if mark.state is MarkState.SUSPECT:
            reason = suspect(code, mark.reason, remedy=IGNORE_HEALTH)
            checkpoints.append(_against(checkpoint, reason))
        else:
            checkpoints.append(checkpoint)
    return replace(inventory, checkpoints=tuple(checkpoints))


def _against(checkpoint: Checkpoint, reason: Finding) -> Checkpoint:
    return replace(checkpoint, findings=(*checkpoint.findings, reason))


def log_findings(problems: Iterable[LogProblem], count: int) -> tuple[Finding, ...]:
    """Return the unreadable lines of the logs.

    Args:
        problems: The problems to report individually.
        count: Number of all problems, which can exceed the length of `problems`.
    """
    findings = [_unreadable(problem) for problem in problems]
    if count > len(findings):
        more = f"{count - len(findings)} more lines of the logs could not be read"
        findings.append(note(Code.LOG_UNREADABLE, more))
    return tuple(findings)


def _unreadable(problem: LogProblem) -> Finding:
    if problem.ends_the_log:
        remedy = "give a log that is readable to its end"
        return unknown(Code.LOG_UNREADABLE, problem.reason, path=problem.source, remedy=remedy)
    message = f"{problem.reason}; this line was not used"
    return note(Code.LOG_UNREADABLE, message, path=problem.source, line=problem.line)


def no_log() -> Finding:
    """Report that no log was found."""
    return unknown(
        Code.LOG_UNREADABLE,
        "no training log was found near the checkpoints, so the threshold could not be applied",
        remedy="give one with --log, or omit --health-threshold",
    )


def trained_since(save: SavedCheckpoint, home: Home, attempts: Sequence[LogAttempt]) -> Finding | None:
    """Report the run's progress after a save, or return None if the last start did not write it or made no progress."""
    if save.step is None or home.known != len(attempts) - 1 or attempts[-1].last <= save.step:
        return None
    return note(
        HealthCode.LOG_GOES_ON,
        f"{save.name} is from step {save.step}, and the log continues to step {attempts[-1].last}: the steps in "
        "between must be redone",
    )


def no_steps(sources: Sequence[str]) -> Finding:
    """Report that the requested logs show no step."""
    more = f" or in {len(sources) - 1} more" if len(sources) > 1 else ""
    return unknown(
        Code.LOG_UNREADABLE,
        f"no step was found in the log{more}, so the question cannot be answered",
        path=sources[0],
        remedy="give the log of a rank that trained; if its columns have other names, give them with --columns",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLogs:
    """The contents of all given logs and timelines."""

    log: TrainingLog | None
    """All logs of the training run; None if there is no log."""
    detected: tuple[AsdEvent, ...]
    """Events that detectors of silent errors logged."""
    timelines: tuple[HealthTimeline, ...]
    """The timelines in saved replays."""
    written: Mapping[CheckpointKey, LocalTime]
    """The times when each checkpoint's files were written, on the clock of the logs."""

    @property
    def attempts(self) -> Sequence[LogAttempt] | None:
        """Each start of the training run; None if unknown."""
        return None if self.log is None else self.log.attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence in the logs, and the tree with the findings from the logs against its checkpoints."""

    question: EvidenceQuestion
    inventory: Inventory
    log: TrainingLog | None
    courses: LineageTimelines
    marks: tuple[CheckpointMark, ...]
    """The position of each checkpoint between the spikes, in the tree's order; empty if health is not a reason."""
    report: HealthReport | None
    """The judgements, if a threshold was given."""
    without_answer: tuple[Finding, ...]
    """Requested evidence that no log contains."""

    def choose(self, pick: Pick) -> tuple[ResumePoint | NoResumePoint, SpikeAdvice | StopAdvice | None]:
        """Choose a checkpoint; on request, a checkpoint for avoiding a spike or for continuing after a stop.

        Args:
            pick: Chooses from a tree whose checkpoints carry the reasons against them.

        Returns:
            The checkpoint to resume from, and the advice about the spike. If waiting is better than going back, the
            checkpoint is the one that would be chosen anyway.

        Raises:
            UsageError: The log shows neither a spike nor a stop.
            IncompleteError: The log shows neither, and could not be read to the end.
        """
        log, wish = self.log, self.question.spike
        if log is None or wish is None:
            return pick(self.inventory), None
        clock = sample_clock(log.metrics)
        newest = log.metrics[-1].step if log.metrics else None
        stop = ended_in_skips(log.notes, newest, skipped_at_end(log.metrics))
        if stop is not None and (wish.around is None or stop.step - stop.count < wish.around <= stop.step):
            point = pick(only_up_to(without_spikes(self.inventory), stop.step, "where the training stopped"))
            after = advise_after_stop(stop.step, _steps(point), count=stop.count, clock=clock, skipped=stop.skipped)
            return point, after
        skipped = [row.step for row in log.metrics if row.skipped]
        self.courses.refuse_hidden_spike(wish.around)
        spike = spike_to_pass(
            self.courses.whole, wish.around, LogReading.of(log), self.question.spike_threshold, skipped
        )
        if newest is None:  # a saved replay shows a spike, and the log shows none
            newest = spike.onset
        recipe = RewindRecipe()
        limit = Step(spike.onset - recipe.margin)
        why = f"{recipe.margin} steps before the spike of step {spike.onset}"
        point = pick(only_up_to(self.inventory, limit, why))
        spike = replace(spike, loss=loss_after(spike, finite_losses(log.metrics)))
        way = advise_spike(spike, _steps(point), newest=newest, clock=clock, recipe=recipe)
        return (point if way.choice is Choice.REWIND else pick(self.inventory)), way

    def timed(self, point: ResumePoint) -> ResumePoint:
        """Add the log's facts about the steps to redo, if it shows the chosen save."""
        attempts = None if self.log is None else self.log.attempts
        home = None if not attempts else self._home(point.checkpoint, attempts).known
        return point if not attempts or home is None else with_log(point, attempts, home)

    def _home(self, checkpoint: Checkpoint, attempts: Sequence[LogAttempt]) -> Home:
        keys = [save.key for save in self.inventory.checkpoints]
        return homes([saved(save) for save in self.inventory.checkpoints], attempts)[keys.index(checkpoint.key)]

    def findings(self, chosen: Checkpoint | None) -> tuple[Finding, ...]:
        """Report unreadable lines, contradictions with the record, and the steps that could not be judged."""
        findings: list[Finding] = []
        if self.log is not None:
            gravest_first = sorted(self.log.problems, key=lambda problem: not problem.ends_the_log)
            findings += log_findings(gravest_first[:3], self.log.problem_count)
        if not any(finding.severity is Severity.UNKNOWN for finding in findings):
            findings += self.without_answer
        if self.report is not None:
            findings += (replace(finding, severity=Severity.NOTE) for finding in self.report.findings)
        return (*findings, *(() if chosen is None else self._of(chosen)))

    def _of(self, chosen: Checkpoint) -> Iterator[Finding]:
        """Report why the chosen checkpoint could not be judged, and the progress of training after that checkpoint."""
        keys = [checkpoint.key for checkpoint in self.inventory.checkpoints]
        place = keys.index(chosen.key)
        hindered = None if self.report is None else self.report.judgements[place].note
        if hindered is not None:
            yield unknown(
                Code.HEALTH_UNKNOWN,
                f"{chosen.name}: {hindered}",
                remedy=(
                    "give the log that has the embedding's norm at its step, or omit --health-threshold; "
                    "--allow-unknown-health accepts checkpoints that could not be judged"
                ),
            )
        if self.question.timeline and self.marks and self.marks[place].state is MarkState.UNKNOWN:
            yield unknown(
                Code.HEALTH_UNKNOWN,
                f"{chosen.name}: whether it was saved in a spike is unknown: {self.marks[place].reason}",
                remedy="give the log of the steps before it, or the norm of a spike with --spike-threshold",
            )
        if self.log is not None and self.log.attempts:
            since = trained_since(saved(chosen), self._home(chosen, self.log.attempts), self.log.attempts)
            yield from () if since is None else (since,)


def _steps(point: ResumePoint | NoResumePoint) -> list[Step]:
    known_step = point.step if isinstance(point, ResumePoint) else None
    return [] if known_step is None else [known_step]


def weigh(
    inventory: Inventory,
    logs: ReadLogs,
    question: EvidenceQuestion,
    report: HealthReport | None,
    *,
    ignore: bool,
) -> Evidence:
    """Judge the checkpoints by the logs.

    Args:
        inventory: The inventory with recorded health; with sizes and times if strikes have times.
        logs: The logs that were read.
        question: The threshold and the evidence to judge by.
        report: Every checkpoint's health, if a threshold was given.
        ignore: Whether to ignore health as a reason.
    """
    courses = _courses(logs, question)
    judged = inventory
    marks: tuple[CheckpointMark, ...] = ()
    if report is not None:
        judged = with_judgements(inventory, report.judgements, threshold=question.threshold, ignore=ignore)
    if not ignore:
        saves, places = saves_of(inventory, logs.attempts, logs.written)
        strikes = courses.marks(saves, places, {*SuspectKind} - {SuspectKind.SPIKE})
        judged = with_marks(judged, strikes, HealthCode.SAVED_AFTER_STRIKE)
        marks = courses.marks(saves, places, {SuspectKind.SPIKE})
        judged = with_marks(judged, marks, HealthCode.SAVED_IN_SPIKE)
    return Evidence(
        question=question,
        inventory=judged,
        marks=marks,
        log=logs.log,
        courses=courses,
        report=report,
        without_answer=_log_without_answer(question, logs),
    )


def _courses(logs: ReadLogs, question: EvidenceQuestion) -> LineageTimelines:
    """Return the suspect steps according to all logs."""
    intervals = [interval for line in logs.timelines for interval in line.intervals]
    replayed = [line.judged for line in logs.timelines if line.judged is not None]
    strikes: tuple[SuspectInterval, ...] = ()
    if logs.detected:
        noticed = FeaturePolicy(config=AsdConfig(enable=True)).judge_events(logs.detected)
        strikes = timeline(noticed, margin_minutes=question.margin_minutes).intervals
    limit = question.spike_threshold

    def judged(rows: Sequence[StepMetrics]) -> HealthTimeline:
        if not rows or not (question.timeline or question.spike is not None):
            return HealthTimeline(intervals=(*intervals, *strikes), judged=union(replayed))
        policy = RobustZPolicy() if limit is None else SkipPolicy(threshold=limit, count_threshold=sys.maxsize)
        coverage = Coverage(policy)
        applied = _applied(rows, coverage)
        events = large_spikes(applied, coverage) if limit is None else judge(policy, applied, coverage)
        spikes = timeline(events, [row.step for row in rows]).intervals
        return HealthTimeline(intervals=(*intervals, *spikes, *strikes), judged=union([*replayed, coverage.steps()]))

    return LineageTimelines(
        judged(() if logs.log is None else logs.log.metrics), logs.attempts, judged, on_any=judged(())
    )


def _applied(rows: Sequence[StepMetrics], coverage: Coverage) -> Iterator[StepMetrics]:
    """Yield the steps with an applied update, because a skipped step changed no weight."""
    for row in rows:
        if row.skipped:
            coverage.add(row, judged=False)
        else:
            yield row


def _log_without_answer(question: EvidenceQuestion, logs: ReadLogs) -> tuple[Finding, ...]:
    """Report that the requested logs contain no evidence.

    Detectors and timelines show suspect stretches, or their absence, without steps.
    """
    log = logs.log
    if log is None and question.threshold is not None:
        return (no_log(),)
    has_health = bool(logs.detected or logs.timelines)
    # A log without any other purpose shows the last step of the run.
    is_alone = question.threshold is None and not question.timeline and question.spike is None
    needs_none = question.threshold is None and not is_alone and (has_health or not question.timeline)
    if log is None or log.metrics or needs_none:
        return ()
    return (no_steps(log.sources),)
