"""The answer of `postflight`: the four parts of the resume, the repeated losses, and the usual causes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.units import counted
from ckpttool.core.formats.strict_json import measured, number
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import Pairs, Picture, line, stack
from ckpttool.postflight.checks import CODES
from ckpttool.postflight.model import Aspect, Judged, State
from ckpttool.postflight.model.answers import Outcome, Postflight

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_STYLES = {Outcome.RESUMED: "bold green", Outcome.WRONG: "bold red", Outcome.UNKNOWN: "bold yellow"}

_STATES = {
    State.PROVEN: "green",
    State.CONSISTENT: "",
    State.NOT_SHOWN: "dim",
    State.CONTRADICTED: "red",
}

_PROVEN = (
    "Proven: equal to within 1 % of the step noise, the usual change of the loss from step to step. A smaller "
    "difference, such as weights rounded once to bf16, cannot be seen."
)

_LEAST_DRAWN = 2


def document(answer: Postflight) -> Document:
    """`ckpttool/postflight/1`."""
    comparison = answer.comparison
    return {
        "schema": "ckpttool/postflight/1",
        "outcome": answer.conclusion.outcome.value,
        "exit_code": answer.exit_code.value,
        "summary": answer.headline,
        "root": answer.root,
        "saved_step": answer.resume.saved,
        "saved_step_source": None if answer.resume.source is None else answer.resume.source.value,
        "loaded_step": None if comparison is None else comparison.loaded,
        "first_step": None if comparison is None else comparison.first,
        "parts": [_part(judged) for judged in answer.aspects],
        "missing": answer.conclusion.missing,
        "missing_until_step": answer.conclusion.until,
        "is_final": answer.conclusion.is_final,
        "assumptions": list(answer.assumptions),
        "repeated": []
        if comparison is None
        else [
            {"step": row.step, "loss_before": number(row.before), "loss_after": number(row.after)}
            for row in comparison.repeated
        ],
        "median_difference": None if comparison is None else measured(comparison.median_z),
        "step_noise": None if comparison is None else measured(comparison.loss_noise),
        "resolution": None if comparison is None else measured(comparison.resolution),
        "logs": {"before": list(answer.resume.before), "after": list(answer.resume.after)},
        "findings": [finding_document(reason.finding) for check in answer.checks for reason in check.reasons],
        "allowed": [finding_document(reason.finding) for check in answer.checks for reason in check.allowed],
    }


def _part(judged: Judged) -> Document:
    return {
        "part": judged.aspect.value,
        "state": judged.state.value,
        "why": judged.why,
        "code": None if judged.word is None else CODES[judged.word].value,
    }


def table(answer: Postflight) -> RenderableType:
    """Show the answer, the four parts, the repeated losses, and the usual causes of the faults."""
    outcome = answer.conclusion.outcome
    parts: list[RenderableType] = [line(shown(answer.headline), style=_STYLES[outcome])]
    if answer.comparison is not None:
        parts += [line(), Pairs(_row(judged) for judged in answer.aspects)]
    if any(judged.state is State.PROVEN for judged in answer.aspects if judged.aspect is not Aspect.POSITION):
        parts += [line(), line(_PROVEN, style="dim")]
    for assumption in answer.assumptions:
        parts += [line(), line(f"Assumed: {shown(assumption)}", style="dim")]
    parts += _losses(answer)
    findings = [reason.finding for check in answer.checks for reason in check.reasons]
    return stack(*parts, *grouped_findings(findings, view=answer.view), *pointer(findings))


def _row(judged: Judged) -> tuple[str, Text]:
    text = line(judged.state.value.replace("-", " "), style=_STATES[judged.state])
    return judged.aspect.value, text.append(f": {shown(judged.why)}", style="")


def _losses(answer: Postflight) -> list[RenderableType]:
    """Draw the losses of both runs over the repeated steps."""
    comparison = answer.comparison
    if comparison is None or len(comparison.repeated) < _LEAST_DRAWN:
        return []
    from ckpttool.health.answers.chart import norm_chart

    rows = comparison.repeated
    title = f"loss over {counted(len(rows), 'repeated step')}"
    before = [(row.step, row.before) for row in rows]
    return [line(), Picture(partial(norm_chart, title, [(row.step, row.after) for row in rows], earlier=before))]
