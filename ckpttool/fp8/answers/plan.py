"""Output for the next experiments, and the checkpoint from which they start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.units import counted, step_and_name
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document
from ckpttool.core.render.shell import quote
from ckpttool.core.render.text import Pairs, Table, line, stack
from ckpttool.fp8.files.plan import SCHEMA, plan_document, suspicion_document
from ckpttool.fp8.model.fp8 import Gemm
from ckpttool.fp8.model.plan import Evidence, Experiment, Fp8Plan, NoPlan
from ckpttool.health.answers.reading import listed

if TYPE_CHECKING:
    from rich.console import RenderableType

_NOTHING: dict[str, Document] = dict.fromkeys(
    ("round", "framework", "versions", "recipe", "start", "horizon", "window", "limit", "output", "columns", "layers")
)


def document(answer: Fp8Plan | NoPlan) -> Document:
    """Return the document of `ckpttool/fp8-plan/1`: one folder per experiment, or why experiments would not help."""
    if isinstance(answer, Fp8Plan):
        return {**plan_document(answer)}
    return {
        "schema": SCHEMA,
        **_NOTHING,
        "compare": {**suspicion_document(answer.suspicion)},
        "baseline": [],
        "candidate": [],
        "extras": [],
        "experiments": [],
        "steps_in_all": 0,
        "reason": answer.reason,
        "notes": [],
    }


def table(answer: Fp8Plan | NoPlan) -> RenderableType:
    """Return a table of the experiments, their cost, and what to do next."""
    if isinstance(answer, NoPlan):
        return stack(line("No experiment was planned", style="bold yellow"), line(shown(answer.reason)))
    latest = [experiment for experiment in answer.experiments if experiment.trial.round == answer.round]
    possible = [experiment for experiment in latest if experiment.change is not None]
    refused = [experiment for experiment in latest if experiment.change is None]
    headline = f"Round {answer.round}: {counted(len(possible), 'experiment')} in {answer.output}"
    parts: list[RenderableType] = [line(shown(headline), style="bold"), line(), Pairs(_numbers(answer)), line()]
    drawn = Table()
    for heading in ("ID", "FPROP", "DGRAD", "WGRAD", "STEPS"):
        drawn.add_column(heading, no_wrap=True)
    drawn.add_column("DESCRIPTION")
    for experiment in possible:
        arithmetic = [experiment.trial.products.of(gemm).value for gemm in Gemm]
        drawn.add_row(
            experiment.trial.id,
            *arithmetic,
            f"{experiment.first_step} to {experiment.last_step}",
            shown(experiment.trial.title),
        )
    parts.append(drawn)
    parts += listed(
        "Not expressible here:", [line(shown(f"{refusal.trial.id}: {_why(refusal)}")) for refusal in refused]
    )
    for note in answer.notes:
        parts += [line(), line(shown(note), style="dim")]
    steps = counted(answer.steps_in_all, "step")
    how = f"each folder's README.md explains how to run it; put its log there too ({steps} in total)"
    parts += listed("Next:", [line(how), line(shown(f"ckpttool fp8 verdict {quote(answer.output)}"))])
    return stack(*parts)


def _why(experiment: Experiment) -> str:
    return (experiment.reason or "").removeprefix("not expressible here: ")


def _numbers(plan: Fp8Plan) -> list[tuple[str, str]]:
    start, hours = (
        plan.start,
        [experiment.device_hours for experiment in plan.experiments if experiment.change is not None],
    )
    evidence = {
        Evidence.RESOLVED: f"{step_and_name(start.step, start.name or '')}, found intact",
        Evidence.TRUSTED: f"step {start.step}, not checked",
        Evidence.SCRATCH: "from scratch",
    }
    numbers = [
        ("candidate", f"{plan.suspicion.kind.value}, recipe {plan.recipe.value if plan.recipe else 'unknown'}"),
        ("start", shown(evidence[start.evidence])),
        ("steps each", f"{plan.horizon}, evaluated over {plan.window[0]} to {plan.window[1]}"),
    ]
    if any(hours):
        numbers.append(("device-hours", f"{sum(hour or 0.0 for hour in hours):.1f}"))
    return numbers
