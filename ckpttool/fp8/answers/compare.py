"""Output for the comparison of two training runs: the gap between their losses, its start, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.units import counted
from ckpttool.core.formats.strict_json import measured, number
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import Pairs, Picture, line, stack
from ckpttool.fp8.files.document import as_json, fields_of
from ckpttool.fp8.model.curves import (
    Comparison,
    CurveClass,
    CurvesAnswer,
    Downstream,
    Effect,
    Evals,
    FloorFrom,
    PairedBy,
    Spike,
    TaskChange,
)
from ckpttool.health.answers.reading import listed, reading_document, reading_parts

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_CASES = {
    CurveClass.DIVERGED: "2",
    CurveClass.EARLY: "2a",
    CurveClass.STEP: "2b",
    CurveClass.DRIFT: "2b",
    CurveClass.LATE: "2b",
    CurveClass.TRANSIENT: "2",
    CurveClass.SPIKES: "1",
}
"""Cases of the published triage by class. The triage does not include match and inconclusive."""

_PLAN = (
    "ckpttool fp8 plan DIR --baseline LOG --candidate LOG --framework NAME --output OUT: experiments that find the "
    "product, operand and layers, from a checkpoint before the gap began"
)
_ADVICE = {
    CurveClass.DIVERGED: ("stop it", _PLAN),
    CurveClass.EARLY: (
        "software first: the newest versions, new features off (overlap, FP8 attention, FP8 parameters)",
        _PLAN,
    ),
    CurveClass.STEP: ("the recipe does not fit", _PLAN),
    CurveClass.DRIFT: ("the recipe does not fit", _PLAN),
    CurveClass.LATE: ("the recipe does not fit", _PLAN),
    CurveClass.TRANSIENT: ("it came back on its own, but the baseline never departed for this long: watch it",),
    CurveClass.SPIKES: ("not caused by the arithmetic: wait, or skip one: ckpttool resolve --around-spike STEP",),
}


_SENTENCES = {
    CurveClass.DIVERGED: "The candidate has diverged",
    CurveClass.EARLY: "The candidate is {worse} from the start",
    CurveClass.STEP: "The candidate is {worse}{since}, by a constant gap",
    CurveClass.DRIFT: "The candidate is {worse}{since}, by a growing gap",
    CurveClass.LATE: "The candidate is {worse}{since}; whether the gap grows is unknown",
    CurveClass.TRANSIENT: "The candidate departed from the baseline for longer than the baseline ever departed from "
    "its own trend, and came back",
    CurveClass.INCONCLUSIVE: "Whether the candidate departs from the baseline is unknown",
    CurveClass.SPIKES: "The candidate {matches}, except for spikes that pass as quickly as the baseline's",
    CurveClass.MATCH: "The candidate {matches}",
}
_MATCHES = {
    Downstream.ALL: "matches the baseline in its loss, but differs in almost every downstream task",
    Downstream.SOME: "matches the baseline in its loss, but is worse at some downstream tasks",
    Downstream.NONE: "matches the baseline",
    None: "matches the baseline",
}


def document(answer: CurvesAnswer) -> Document:
    """Return the document of `ckpttool/fp8-compare/1`: the gap between two training runs, its start, and its kind."""
    comparison = answer.comparison
    gap, floor, norm, limit = comparison.gap, comparison.floor, comparison.norm_gap, measured(comparison.limit)
    return {
        "schema": "ckpttool/fp8-compare/1",
        "baseline": reading_document(answer.baseline),
        "candidate": reading_document(answer.candidate),
        "repeats": [reading_document(repeat) for repeat in answer.repeats],
        "by": comparison.by.value,
        "metric": comparison.metric.value,
        "pairs": comparison.pairs,
        "first": comparison.first,
        "last": comparison.last,
        "pairing": measured(comparison.pairing),
        "class": comparison.kind.value,
        "case": _case(answer),
        "shape": as_json(comparison.shape),
        "effect": comparison.effect.value,
        "matters": comparison.matters,
        "gap": as_json(gap and gap.mean),
        "relative_gap": measured(comparison.relative_gap),
        "interval": as_json(gap and (gap.low, gap.high)),
        "floor": as_json(floor and floor.value),
        "floor_from": as_json(floor and floor.source),
        "tolerance": measured(comparison.tolerance),
        "limit": limit,
        "smallest_visible": limit,
        "onset": as_json(comparison.onset),
        "spikes": [_spike(spike) for spike in comparison.spikes],
        "gradient_norm": as_json(norm and {"gap_of_log": norm.mean, "interval": (norm.low, norm.high)}),
        "windows": as_json(comparison.windows),
        "evals": None if answer.evals is None else _evals_document(answer.evals),
        "notes": list(comparison.notes),
        "findings": [finding_document(finding) for finding in comparison.findings],
    }


def _evals_document(evals: Evals) -> Document:
    tasks = ({**fields_of(task, number), "error": measured(task.error), "z": measured(task.z)} for task in evals.tasks)
    return {
        "verdict": as_json(evals.verdict),
        "changed": list(evals.changed),
        "dropped": list(evals.dropped),
        "tasks": list(tasks),
    }


def _spike(spike: Spike) -> Document:
    return {
        "run": "candidate" if spike.candidate else "baseline",
        "first": spike.first,
        "last": spike.last,
        "height": measured(spike.height),
        "shared": spike.shared,
    }


def _case(answer: CurvesAnswer) -> str | None:
    evals = answer.evals
    if evals is not None and evals.verdict in {Downstream.ALL, Downstream.SOME}:
        return str(evals.verdict.value)
    return _CASES.get(answer.comparison.kind)


def table(answer: CurvesAnswer) -> RenderableType:
    """Return a table of the class of the gap, the numbers behind it, the gap over the steps, and what to do."""
    comparison = answer.comparison
    numbers = list(_numbers(comparison))
    parts: list[RenderableType] = [_headline(answer)]
    if numbers:
        parts += [line(), Pairs(numbers)]
    if comparison.windows:
        parts += [line(), _chart(comparison)]
    if answer.evals is not None:
        parts += _evals_parts(answer.evals)
    parts += listed("What to do:", [line(advice) for advice in _advice(answer)])
    for note in comparison.notes:
        parts += [line(), line(note, style="dim")]
    for finding in comparison.findings:
        parts += [line(), line(f"{finding.severity.word} {finding.code.value}: {finding.message}", style="yellow")]
    for reading in answer.readings:
        parts += reading_parts(reading)
    return stack(*parts)


def _headline(answer: CurvesAnswer) -> Text:
    comparison = answer.comparison
    style = "bold green" if comparison.told else "bold yellow"
    if answer.leaves:
        style = "bold red"
    case = _case(answer)
    return line(f"{_sentence(answer)}{f' (case {case})' if case else ''}", style=style)


def _sentence(answer: CurvesAnswer) -> str:
    gap, onset = answer.comparison.gap, answer.comparison.onset
    return _SENTENCES[answer.comparison.kind].format(
        worse="better" if gap is not None and gap.mean < 0 else "worse",
        since="" if onset is None else f" since step {onset.step}",
        matches=_MATCHES[None if answer.evals is None else answer.evals.verdict],
    )


def _numbers(comparison: Comparison) -> Iterator[tuple[str, str]]:
    if comparison.first is not None:
        by = "" if comparison.by is PairedBy.STEP else ", paired by samples"
        loss = comparison.metric.value
        yield "pairs", f"{comparison.pairs} of {loss}, steps {comparison.first} to {comparison.last}{by}"
    if comparison.pairing is not None:
        yield "same data", f"correlation {comparison.pairing:.2f} between the changes from value to value"
    gap = comparison.gap
    if gap is not None and comparison.limit is not None:
        share = "" if comparison.relative_gap is None else f" ({comparison.relative_gap:+.2%})"
        yield "gap at the end", f"{gap.mean:+.4g}{share}, 95 %: {gap.low:+.4g} to {gap.high:+.4g}"
        yield "limit", f"{comparison.limit:.4g}, {_limit_from(comparison)}: smaller gaps are not visible"
    yield from _judgement(comparison)
    if comparison.onset is not None:
        onset = comparison.onset
        yield "since", f"step {onset.step}; not before {onset.not_before}, not after {onset.not_after}"
    if comparison.spikes:
        mine = sum(spike.candidate for spike in comparison.spikes)
        shared = sum(spike.candidate and spike.shared for spike in comparison.spikes)
        theirs = len(comparison.spikes) - mine
        yield "spikes", f"{mine} in the candidate ({shared} shared), {theirs} in the baseline"
    if comparison.norm_gap is not None:
        norm = comparison.norm_gap
        low, high = (math.expm1(bound) for bound in (norm.low, norm.high))
        yield "gradient norm", f"{math.expm1(norm.mean):+.1%} at the end, 95 %: {low:+.1%} to {high:+.1%}"


def _limit_from(comparison: Comparison) -> str:
    floor, tolerance = comparison.floor, comparison.tolerance
    if floor is None or tolerance is None:
        return ""
    if floor.source is FloorFrom.SAMPLING:
        return f"from a single baseline (noise {floor.value:.4g}, tolerance {tolerance:.4g})"
    return f"from repeats {floor.value:.4g} and tolerance {tolerance:.4g}"


_EFFECT = {
    Effect.YES: "yes, the difference exceeds that of a repeat on the same data",
    Effect.NO: "no, a repeat on the same data differs by as much",
    Effect.UNKNOWN: "unknown: there is no repeat on the same data",
}
_MATTERS = {True: "yes", False: "no", None: "unknown"}


def _judgement(comparison: Comparison) -> Iterator[tuple[str, str]]:
    if comparison.gap is not None:
        yield "effect", _EFFECT[comparison.effect]
        yield "matters", _MATTERS[comparison.matters]


def _chart(comparison: Comparison) -> Picture:
    from ckpttool.core.domain.units import Step
    from ckpttool.health.answers.chart import norm_chart

    points = [(Step((window.first + window.last) // 2), window.gap) for window in comparison.windows]
    limit = comparison.limit or 0.0
    title = "candidate minus baseline, mean of each window; the lines are the limit"
    return Picture(partial(norm_chart, title, points, lines=[limit, -limit]))


def _advice(answer: CurvesAnswer) -> Sequence[str]:
    comparison = answer.comparison
    verdict = None if answer.evals is None else answer.evals.verdict
    if verdict is Downstream.ALL:
        return ("check the export and the evaluation: scales, format, the model's own precision",)
    if verdict is Downstream.SOME:
        return ("change the recipe", _PLAN)
    if comparison.kind is CurveClass.INCONCLUSIVE and comparison.gap is not None and not comparison.findings:
        return (
            "pass a second run of the baseline: --repeat LOG",
            "ckpttool fp8 plan begins with one from a checkpoint",
        )
    if comparison.leaves and comparison.gap is not None and comparison.gap.mean < 0:
        return ("a better loss is also a difference: compare data, batch sizes and settings of both runs",)
    return _ADVICE.get(comparison.kind, ())


def _evals_parts(evals: Evals) -> list[RenderableType]:
    if evals.verdict is None:
        return [line(), line("The downstream tasks were not compared: the losses do not match", style="dim")]
    summary = (
        f"{counted(len(evals.tasks), 'downstream task')}: {len(evals.changed)} changed, {len(evals.dropped)} dropped"
    )
    moved = [task for task in evals.tasks if task.task in {*evals.changed, *evals.dropped}]
    return [line(), line(summary), *listed("Changed:", [_task(task) for task in moved])]


def _task(task: TaskChange) -> Text:
    z = "" if task.z is None else f", {task.z:+.1f} standard errors"
    return line(f"{shown(task.task)}: {task.baseline:.4f} to {task.candidate:.4f}{z}")
