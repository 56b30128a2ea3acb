"""The JSON of answers about training logs; what is no number in JSON is spelt as text, `"nan"` or `"inf"`."""

from __future__ import annotations

import math
from dataclasses import fields

from ckpttool.domain.advice import Calibration, Refusal, Threshold
from ckpttool.domain.health_events import (
    CheckpointMark,
    HealthEvent,
    HealthJudgement,
    HealthTimeline,
    SkippedSpan,
    SuspectInterval,
)
from ckpttool.domain.log_answer import (
    AsdAnswer,
    CalibrationAnswer,
    HealthAnswer,
    LogReading,
    ReplayAnswer,
    WeightNumbers,
)
from ckpttool.domain.metrics import LocalTime, show_local_time
from ckpttool.render.answers.advice import advice_document
from ckpttool.render.json import Document, finding_document
from ckpttool.trainers.mindformers.settings_to_paste import yaml_to_paste


def number(value: float | None) -> Document:
    """Spell a number that may be NaN or infinite."""
    return value if value is None or math.isfinite(value) else str(float(value))


def health_document(answer: HealthAnswer) -> Document:
    """`ckpttool/health/1`: every checkpoint's health, oldest first."""
    weights = {(each.name, each.step): each for each in answer.weights}
    return {
        "schema": "ckpttool/health/1",
        "root": answer.root,
        "threshold": answer.report.threshold,
        "checkpoints": [_judgement(each, weights.get((each.name, each.step))) for each in answer.report.judgements],
        "newest_healthy": answer.report.newest_healthy,
        "health_file": answer.health_file,
        "written": answer.written,
        "logs": None if answer.reading is None else reading_document(answer.reading),
        "findings": [finding_document(finding) for finding in answer.report.findings],
    }


def _judgement(judgement: HealthJudgement, weights: WeightNumbers | None) -> Document:
    return {
        "name": judgement.name,
        "step": judgement.step,
        "recorded": judgement.recorded.value,
        "embedding_local_norm": number(judgement.embedding_local_norm),
        "l2_norm": number(judgement.l2_norm),
        "health": judgement.health.value,
        "source": judgement.source,
        "note": judgement.note,
        "weights": None
        if weights is None
        else {
            "nonfinite": weights.nonfinite,
            "embedding_l2": number(weights.embedding_l2),
            "embedding_first_moment": number(weights.embedding_moment),
            "read_all": weights.read_all,
        },
    }


def reading_document(reading: LogReading) -> Document:
    """Spell which logs were read, and what in them could not be."""
    return {
        "sources": list(reading.sources),
        "steps": reading.steps,
        "notes": [
            {
                "kind": note.kind.value,
                "source": note.source,
                "line": note.line,
                "step": note.step,
                "previous_step": note.previous_step,
                "value": number(note.value),
                "count": note.count,
            }
            for note in reading.notes
        ],
        "problem_count": reading.problem_count,
        "problems": [
            {"source": each.source, "line": each.line, "reason": each.reason, "text": each.text}
            for each in reading.problems
        ],
    }


def replay_document(answer: ReplayAnswer) -> Document:
    """`ckpttool/replay/1`: what a policy would have done. `resolve --health-timeline` reads it back."""
    result = answer.result
    document: dict[str, Document] = {
        "schema": "ckpttool/replay/1",
        "policy": result.policy,
        "settings": {name: number(value) if isinstance(value, float) else value for name, value in answer.settings},
        "logs": reading_document(answer.reading),
        "first_step": result.first_step,
        "last_step": result.last_step,
        "steps_seen": result.steps_seen,
        "steps_unseen": result.steps_unseen,
        "stopped_at": result.stopped_at,
        "updates_lost": result.updates_lost,
        "learning_rate_index": result.learning_rate_index,
        "spans": [_span(span) for span in result.spans],
        "events": [_event(event) for event in result.events],
        "notes": list(result.notes),
        "timeline": timeline_document(answer.timeline),
    }
    if answer.marks is not None:
        document["checkpoints"] = [_mark(mark) for mark in answer.marks]
    if answer.advice is not None:
        document["advice"] = advice_document(answer.advice)
    return document


def _span(span: SkippedSpan) -> Document:
    return {"first": span.first, "last": span.last, "updates": span.updates, "peak": number(span.peak)}


def _event(event: HealthEvent) -> Document:
    return {
        "kind": event.kind.value,
        "step": event.step,
        "time": _time(event.time),
        "rank": event.rank,
        "value": number(event.value),
        "limit": number(event.limit),
        "count": event.count,
        "since_step": event.since_step,
        "since_time": _time(event.since_time),
        "message": event.message,
    }


def _mark(mark: CheckpointMark) -> Document:
    return {"name": mark.name, "step": mark.step, "state": mark.state.value, "reason": mark.reason}


def timeline_document(line: HealthTimeline) -> Document:
    """Spell the suspect stretches."""
    return [_interval(interval) for interval in line.intervals]


def _interval(interval: SuspectInterval) -> Document:
    return {
        "kind": interval.kind.value,
        "first_step": interval.first_step,
        "recovered_step": interval.recovered_step,
        "first_time": _time(interval.first_time),
        "rank": interval.rank,
        "peak": number(interval.peak),
        "reason": interval.reason,
    }


def _time(time: LocalTime | None) -> str | None:
    return None if time is None else show_local_time(time)


def calibration_document(answer: CalibrationAnswer) -> Document:
    """`ckpttool/calibration/1`: thresholds that fit a run."""
    calibration: Calibration = answer.calibration
    return {
        "schema": "ckpttool/calibration/1",
        "logs": reading_document(answer.reading),
        "warm_up": calibration.warm_up,
        "global_norm_spike_threshold": _threshold(calibration.global_norm),
        "global_norm_spike_count_threshold": calibration.count_threshold,
        "longest_run": calibration.longest_run,
        "embedding_local_norm_threshold": _threshold(calibration.embedding_local_norm),
        "notes": list(calibration.notes),
        "yaml": yaml_to_paste(calibration) or None,
    }


def _threshold(threshold: Threshold | Refusal) -> Document:
    match threshold:
        case Refusal():
            return {"value": None, "points": threshold.points, "needed": threshold.needed, "reason": threshold.reason}
        case Threshold():
            return {
                "value": threshold.value,
                "points": threshold.points,
                "median": threshold.median,
                "spread": threshold.spread,
                "highest_normal": threshold.highest_normal,
                "excluded": threshold.excluded,
                "false_skips_per_10000": threshold.false_alarms,
                "false_skips_per_10000_at_most": threshold.false_alarms_at_most,
                "alarm_share": threshold.alarm_share,
                "bins": [{"low": each.low, "high": each.high, "count": each.count} for each in threshold.bins],
            }


def asd_document(answer: AsdAnswer) -> Document:
    """`ckpttool/asd/1`: what a parser makes of a configuration string."""
    config = answer.check.config
    return {
        "schema": "ckpttool/asd/1",
        "dialect": answer.check.dialect.value,
        "variable": answer.variable,
        "string": answer.text,
        "starts": answer.check.error is None,
        "error": answer.check.error,
        "config": {field.name: getattr(config, field.name) for field in fields(config)},
        "findings": [finding_document(finding) for finding in answer.findings],
    }
