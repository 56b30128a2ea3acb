"""Several logs of one training into one value for each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace

from ckpttool.domain.metrics import LogItem, LogNote, LogProblem, NoteKind, StepMetrics, TrainingLog
from ckpttool.domain.units import Step

_KEPT_PROBLEMS = 50
"""Enough to see what is wrong; the rest is counted. That a whole log cannot be read is never among the rest alone."""

_FIELDS = tuple(field.name for field in fields(StepMetrics) if field.name not in {"step", "embedding_local_norm"})


def put_together(logs: Iterable[tuple[str, Iterable[LogItem]]]) -> TrainingLog:
    """Return one value a step from the logs of all ranks and of all attempts.

    Within one log the last attempt at a step counts. Across logs, equal norms mean two ranks at the same step:
    what one does not show the other may, and of two embedding norms the worse one counts, since one unhealthy rank is
    enough. Different norms mean two attempts: the later one by the clock counts, else the later log.

    Memory grows with the number of steps, not with the size of the logs.

    Args:
        logs: Names, and what `read_log` yields for them.
    """
    steps: dict[Step, StepMetrics] = {}
    notes: list[LogNote] = []
    problems: list[LogProblem] = []
    sources: list[str] = []
    count = 0
    for name, items in logs:
        sources.append(name)
        own: dict[Step, StepMetrics] = {}
        for item in items:
            if isinstance(item, StepMetrics):
                own[item.step] = item
            elif isinstance(item, LogNote):
                notes.append(item)
            else:
                count += 1
                if count <= _KEPT_PROBLEMS or (item.ends_the_log and not any(each.ends_the_log for each in problems)):
                    problems.append(item)
        notes += _merge(steps, own, name)
    ordered = tuple(steps[step] for step in sorted(steps))
    return TrainingLog(
        sources=tuple(sources), metrics=ordered, notes=tuple(notes), problems=tuple(problems), problem_count=count
    )


def _merge(steps: dict[Step, StepMetrics], own: dict[Step, StepMetrics], name: str) -> list[LogNote]:
    redone: list[Step] = []
    for step, metrics in own.items():
        known = steps.get(step)
        if known is None:
            steps[step] = metrics
        elif _same_attempt(known, metrics):
            steps[step] = _combined(known, metrics)
        else:
            redone.append(step)
            if not (known.time and metrics.time) or metrics.time >= known.time:
                steps[step] = metrics
    if not redone:
        return []
    return [LogNote(kind=NoteKind.REWIND, source=name, line=0, step=min(redone), previous_step=max(redone))]


def _same_attempt(one: StepMetrics, other: StepMetrics) -> bool:
    if one.global_norm is None or other.global_norm is None:
        return True
    return one.global_norm == other.global_norm or (math.isnan(one.global_norm) and math.isnan(other.global_norm))


def _combined(one: StepMetrics, other: StepMetrics) -> StepMetrics:
    missing = {name: getattr(other, name) for name in _FIELDS if getattr(one, name) is None}
    return replace(one, embedding_local_norm=_worse(one.embedding_local_norm, other.embedding_local_norm), **missing)


def _worse(one: float | None, other: float | None) -> float | None:
    norms = [norm for norm in (one, other) if norm is not None]
    return max(norms, key=lambda norm: (math.isnan(norm), norm), default=None)
