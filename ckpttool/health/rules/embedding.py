"""The health of checkpoints, by the embedding norm that the log shows at each save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.domain.health import Health, worst_health
from ckpttool.core.domain.metrics import LogAttempt, TrainingLog
from ckpttool.health.model.events import HealthJudgement, HealthReport, SavedCheckpoint
from ckpttool.health.rules.evidence import saved
from ckpttool.health.rules.runs import LoggedStep, homes, logged_step
from ckpttool.trainers.findings import TrainersCode


def judge_checkpoints(
    inventory: Inventory, log: TrainingLog | None, *, threshold: float | None, pipeline_stages: int | None
) -> HealthReport:
    """Judge every checkpoint of a tree by the log and by the records.

    If the number of pipeline stages is unknown, a single rank is taken to mean a single stage, because the files show
    nothing else.
    """
    sizes = {checkpoint.topology.world_size for checkpoint in inventory.checkpoints}
    stages = 1 if pipeline_stages is None and sizes == {1} else pipeline_stages
    saves = [saved(checkpoint) for checkpoint in inventory.checkpoints]
    return judge_health(saves, () if log is None else log.attempts, threshold=threshold, pipeline_stages=stages)


def judge_health(
    saves: Sequence[SavedCheckpoint],
    attempts: Sequence[LogAttempt] | None,
    *,
    threshold: float | None,
    pipeline_stages: int | None = None,
) -> HealthReport:
    """Judge every checkpoint, and report disagreements between the log and the record.

    Args:
        saves: The checkpoints, in display order.
        attempts: Each start of the training run in the logs; empty without a log.
        threshold: Sum of squares at or above which a checkpoint is unhealthy; None to use the record alone.
        pipeline_stages: Number of stages of the run, if known. With one stage nothing was ever measured, whatever is
            recorded, unless the trainer records only measured values.

    Source:
        A trainer may record a NaN as healthy, because it is not at or above the threshold. It may also record "healthy"
        without a measurement: with one pipeline stage, or if no tensor has the size of the embedding (norm 0).
    """
    judgements = []
    findings: list[Finding] = []
    for save, home in zip(saves, homes(saves, attempts), strict=True):
        judgement = _judge(save, logged_step(save, home, attempts), threshold, pipeline_stages, logged=attempts != ())
        judgements.append(judgement)
        findings += _disagreement(save, judgement, threshold)
    return HealthReport(threshold=threshold, judgements=tuple(judgements), findings=tuple(findings))


def _judge(
    save: SavedCheckpoint,
    logged_line: LoggedStep,
    threshold: float | None,
    pipeline_stages: int | None,
    *,
    logged: bool,
) -> HealthJudgement:
    health, source, note = _by_record(save, pipeline_stages)
    norm = logged_line.embedding_local_norm
    if save.is_marked and health is Health.UNHEALTHY:
        pass  # the norm at the save does not refute the person's reason
    elif norm == 0 and not save.records_measured_health:
        note = "the log shows norm 0: no tensor matched the embedding, so nothing was measured"
        health = worst_health((health, Health.UNKNOWN))
    elif norm is not None and threshold is not None:
        source = "log"
        healthy = norm < threshold  # also false for NaN
        health, note = (Health.HEALTHY if healthy else Health.UNHEALTHY), None
    elif threshold is not None:
        message = "does not have the embedding's norm at its step" if logged else "is missing"
        if logged_line.is_doubtful:
            message = "has its step, but possibly from another start of the training"
        note = f"the log {message}, so the threshold could not be applied{f'; {note}' if note else ''}"
    return HealthJudgement(
        name=save.name,
        step=save.step,
        recorded=save.recorded,
        embedding_local_norm=norm,
        l2_norm=None if norm is None or norm < 0 else math.sqrt(norm),
        health=health,
        source=source,
        note=note,
    )


def _by_record(save: SavedCheckpoint, pipeline_stages: int | None) -> tuple[Health, str, str | None]:
    if save.is_marked:
        return save.recorded, "mark", None
    if save.recorded is Health.UNKNOWN:
        return Health.UNKNOWN, "none", None
    if save.recorded is Health.HEALTHY and pipeline_stages == 1 and not save.records_measured_health:
        return Health.UNKNOWN, "record", "recorded as healthy, but with one pipeline stage nothing is measured"
    return save.recorded, "record", None


def _disagreement(save: SavedCheckpoint, judgement: HealthJudgement, threshold: float | None) -> Iterator[Finding]:
    if judgement.source != "log" or save.is_marked or judgement.recorded in {Health.UNKNOWN, judgement.health}:
        return
    worse = judgement.health is Health.UNHEALTHY
    yield Finding(
        code=TrainersCode.HEALTH_CONTRADICTORY,
        severity=Severity.SUSPECT if worse else Severity.NOTE,
        message=f"{save.name} is recorded {judgement.recorded.value}, but its embedding norm "
        f"{judgement.embedding_local_norm:g} is {judgement.health.value} at the threshold {threshold:g}",
        path=save.name,
        expected=judgement.recorded.value,
        actual=judgement.health.value,
        remedy="ckpttool health --write brings the record in line with the log",
    )
