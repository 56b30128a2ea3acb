"""The files in the folder of an FP8 experiment: its description, the changes, and the meaning of each outcome."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.render.json import dumps
from ckpttool.fp8.files.plan import experiment_document
from ckpttool.fp8.model.fp8 import Gemm
from ckpttool.fp8.model.plan import REFERENCE, Change, Evidence, Experiment, Fp8Plan

README, ABOUT, FLAGS = "README.md", "experiment.json", "flags.txt"
OWN = (README, ABOUT, FLAGS)
"""The files in each folder besides the framework's configs."""


def files_of(experiment: Experiment, plan: Fp8Plan) -> dict[str, str]:
    """Return the content of each file by its name."""
    change = experiment.change or Change()
    return {
        README: "\n".join(_readme(experiment, plan)) + "\n",
        ABOUT: dumps(experiment_document(experiment)) + "\n",
        FLAGS: "".join(f"{flag}\n" for flag in flags(change)),
        **dict(change.files),
    }


def flags(change: Change) -> Iterator[str]:
    """Yield the lines of a change, with one setting per line. No script is edited."""
    for name in change.remove:
        yield f"remove {name}"
    for name, value in change.set:
        yield f"set {name} {value}".rstrip()
    for name, value in change.env:
        yield f"env {name}={value}"


def _readme(experiment: Experiment, plan: Fp8Plan) -> Iterator[str]:
    trial, change = experiment.trial, experiment.change
    yield from (f"# {trial.id}: {trial.title}", "")
    if change is None:
        yield f"{(experiment.reason or 'Not expressible here')[:1].upper()}{(experiment.reason or '')[1:]}."
        return
    yield from (_where(experiment, plan), "", "| product | arithmetic |", "|---|---|")
    only = "" if trial.operand is None else f", only its {trial.operand.value}"
    for gemm in Gemm:
        yield f"| {gemm.value} | {trial.products.of(gemm).value}{only if gemm in trial.products.changed else ''} |"
    if trial.layers is not None:
        yield from ("", f"Only in the layers `{trial.layers}`; all others as in the candidate.")
    yield from ("", "## How to run it", "")
    for flag in flags(change):
        yield f"- {flag}"
    for note in change.notes:
        yield f"- {note}"
    first, last = experiment.window
    yield from (
        "",
        "Change nothing else: same data in the same order, same seed, batch size and learning rates. Log the loss",
        f"as often as you can, and put the log here as `{trial.id}.log`, or pass it: `--log {trial.id}=LOG`.",
        "",
        "## What the result means",
        "",
        f"- **{_if(experiment)}:** {trial.if_guilty}",
        f"- **Otherwise:** {trial.if_innocent}",
        "",
        f"`ckpttool fp8 verdict {plan.output}` evaluates it with the others, over steps {first} to {last}.",
    )


def _if(experiment: Experiment) -> str:
    trial = experiment.trial
    if trial.id == REFERENCE or trial.is_regrouped or (not trial.products.changed and trial.id.startswith("C")):
        return "As expected"
    return "The loss returns to that of BF16"


def _where(experiment: Experiment, plan: Fp8Plan) -> str:
    steps = f"steps {experiment.first_step + 1} to {experiment.last_step} ({experiment.steps} of them)"
    if experiment.trial.from_last:
        return f"From the candidate's checkpoint of step {experiment.first_step}: {steps}."
    start = plan.start
    if start.evidence is Evidence.SCRATCH:
        return f"From scratch: {steps}."
    named = "" if start.name is None else f" {start.name}"
    how = "not checked" if start.evidence is Evidence.TRUSTED else "found intact"
    return f"From the checkpoint{named} of step {start.step}, {how}: {steps}."
