"""Judge the health of checkpoints, and bring the record of it up to date."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpttool.api.trees import HEALTH_FILE, Tree, health_file_beside, recorded_names
from ckpttool.decide.lineage import Course
from ckpttool.decide.log_evidence import log_findings
from ckpttool.decide.weight_trend import unread, weigh
from ckpttool.domain.checkpoint import Checkpoint, Inventory
from ckpttool.domain.finding import Finding, Severity
from ckpttool.domain.health import Health
from ckpttool.domain.health_events import HealthJudgement, HealthReport
from ckpttool.domain.log_answer import HealthAnswer, LogReading, WeightNumbers
from ckpttool.domain.log_question import HealthQuestion
from ckpttool.domain.progress import newest_first
from ckpttool.domain.units import Step
from ckpttool.domain.verdict import Verdict
from ckpttool.errors import IncompleteError, UsageError, WriteFailedError
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.mindformers.embedding_health import judge_checkpoints
from ckpttool.trainers.registry import log_reader

if TYPE_CHECKING:
    from ckpttool.domain.metrics import TrainingLog

LOCK_SECONDS = 60.0
"""How long to wait for another ckpttool that writes the health file: each holds it for milliseconds."""


def health(tree: Tree, question: HealthQuestion, verdicts: Sequence[Verdict] = ()) -> HealthAnswer:
    """Judge every checkpoint of a tree by the log, by what is recorded, and by what its shards hold.

    Args:
        tree: Scanned.
        question: How to judge.
        verdicts: On its checkpoints at level NUMERICS, where the shards shall have a say.

    Raises:
        UsageError: A log is not there, or what is asked cannot be.
        IncompleteError: The record was to be written, and a log could not be read to its end.
        LockedError: Another process writes the health file.
        WriteFailedError: It could not be written; nothing was changed.
        NotDurableError: It is written, but the disk did not confirm it.
    """
    inventory = tree.inventory
    if question.write:
        _assert_writable(tree, question)
    log = log_reader(question.logs.columns).merged(question.logs.patterns, inventory.root)
    if question.write and log is not None:
        _assert_read_to_its_end(log)
    report = judge_checkpoints(inventory, log, threshold=question.threshold, pipeline_stages=question.pipeline_stages)
    looked_into = {verdict.key: weigh(verdict) for verdict in verdicts}
    weights = [looked_into.get(checkpoint.key) for checkpoint in inventory.checkpoints]
    report = _with_newest(_with_weights(report, weights), inventory)
    place = question.health_file or health_file_beside(inventory.root)
    written = False
    if question.write:
        place = place or os.path.join(os.path.normpath(os.path.join(inventory.root, os.pardir)), HEALTH_FILE)
        written = _write(place, tree, report)
        report = replace(report, findings=tuple(replace(one, severity=Severity.NOTE) for one in report.findings))
    findings = (*report.findings, *_other_findings(inventory, log, verdicts))
    return HealthAnswer(
        root=inventory.root,
        report=replace(report, findings=findings),
        newest=_newest(report, inventory),
        reading=None if log is None else LogReading.of(log),
        points=_points(log),
        weights=tuple(each for each in weights if each is not None),
        health_file=place,
        written=written,
    )


def _assert_writable(tree: Tree, question: HealthQuestion) -> None:
    if question.threshold is None:
        raise UsageError("--write records a judgement: give the --threshold to judge by")
    for checkpoint in tree.inventory.checkpoints:
        if isinstance(refusal := tree.layout.recorded_name(checkpoint), Refusal):
            raise UsageError(f"--write {refusal.why}; resolve --health-threshold judges without one")


def _assert_read_to_its_end(log: TrainingLog) -> None:
    """A later attempt at the same step, which the log would show further on, may have been worse."""
    for each in log.problems:
        if each.ends_the_log:
            raise IncompleteError(f"{each.source}: {each.reason}; nothing was recorded from the part that was read")


def _with_weights(report: HealthReport, weights: Sequence[WeightNumbers | None]) -> HealthReport:
    """Call what holds NaN or infinity unhealthy, whatever was measured when it was saved."""
    pairs = zip(report.judgements, weights, strict=True)
    return replace(report, judgements=tuple(_weighed(*pair) for pair in pairs))


def _weighed(one: HealthJudgement, numbers: WeightNumbers | None) -> HealthJudgement:
    if numbers is None or not numbers.nonfinite:
        return one
    note = f"its shards hold {numbers.nonfinite} NaN or infinite values"
    return replace(one, health=Health.UNHEALTHY, source="weights", note=note)


def _pairs(report: HealthReport, inventory: Inventory) -> list[tuple[Checkpoint, HealthJudgement]]:
    """Return checkpoints of the training's last course with their judgements, newest first."""
    judgements = {id(one): judgement for one, judgement in zip(inventory.checkpoints, report.judgements, strict=True)}
    course = Course(inventory)
    ours = (one for one in course.best_first(newest_first(inventory.checkpoints)) if not course.abandoned(one))
    return [(one, judgements[id(one)]) for one in ours]


def _with_newest(report: HealthReport, inventory: Inventory) -> HealthReport:
    """Name the newest healthy one as `resolve` understands newest: a later run before a higher step."""
    healthy = (one.name for one, judgement in _pairs(report, inventory) if judgement.health is Health.HEALTHY)
    return replace(report, newest_healthy=next(healthy, None))


def _newest(report: HealthReport, inventory: Inventory) -> HealthJudgement | None:
    return next((judgement for _, judgement in _pairs(report, inventory)), None)


def _other_findings(inventory: Inventory, log: TrainingLog | None, verdicts: Sequence[Verdict]) -> tuple[Finding, ...]:
    found = [one for one in inventory.findings if one.code.value.startswith("health-")]
    if log is not None:
        problems = ((each.source, each.line, each.reason) for each in log.problems)
        found += log_findings(problems, log.problem_count)
    for verdict in verdicts:
        found += unread(verdict)
    return tuple(found)


def _points(log: TrainingLog | None) -> tuple[tuple[Step, float], ...]:
    if log is None:
        return ()
    return tuple((row.step, row.embedding_local_norm) for row in log.metrics if row.embedding_local_norm is not None)


def _write(place: str, tree: Tree, report: HealthReport) -> bool:
    """Bring the health file in line with what the log showed, and tell whether it was changed."""
    from ckpttool.trainers.mindformers.health_file import updated_health_json
    from ckpttool.write import locked
    from ckpttool.write import replace as write

    judged = [
        (name, judgement.health)
        for name, judgement in zip(recorded_names(tree.layout, tree.inventory), report.judgements, strict=True)
        if judgement.source == "log" and name is not None
    ]
    with locked(place, timeout=LOCK_SECONDS):
        old = _content(place)
        try:
            new = updated_health_json(old, judged)
        except ValueError as error:
            raise WriteFailedError(f"{place} is no health file ({error}); nothing was changed") from None
        if new == old:
            return False
        write(place, new, overwrite=True, backup=True)
    return True


def _content(place: str) -> bytes | None:
    try:
        with open(place, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WriteFailedError(f"{place} cannot be read: {error.strerror or error}; nothing was changed") from None
