"""Output for the cause of a gap, the fix, and the next round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import counted
from ckpttool.core.formats.strict_json import measured
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import Pairs, Table, line, stack
from ckpttool.fp8.answers.experiment import flags
from ckpttool.fp8.files.document import as_json, fields_of
from ckpttool.fp8.files.plan import change_document
from ckpttool.fp8.model.plan import Cure, Fp8Verdict, Shown, VerdictKind
from ckpttool.health.answers.reading import listed

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEADLINES = {
    VerdictKind.CULPRIT: "Cause",
    VerdictKind.SOFTWARE: "The cause is the software",
    VerdictKind.STALE_SCALE: "The cause is a stale scale",
    VerdictKind.FORMAT: "The format is too coarse",
    VerdictKind.NOT_REPRODUCED: "The gap was not reproduced",
    VerdictKind.WEAK: "The gap is too small to decide",
    VerdictKind.DAMAGED_START: "The start is already damaged",
    VerdictKind.UNDECIDED: "Not decided yet",
    VerdictKind.INNOCENT: "FP8 is not the cause",
}

_NO_LOG = "it has no log"


def document(answer: Fp8Verdict) -> Document:
    """Return the document of `ckpttool/fp8-verdict/1`: the cause, what to change, or the next round."""
    shares = answer.shares
    return {
        "schema": "ckpttool/fp8-verdict/1",
        "round": answer.round,
        "verdict": answer.kind.value,
        "because": answer.because,
        "culprits": as_json(answer.culprits),
        "operands": as_json(answer.operands),
        "layers": answer.layers,
        "explains": measured(answer.explains),
        "cure": None if answer.cure is None else _cure_document(answer.cure),
        "experiments": [_result_document(result) for result in answer.experiments],
        "shares": None if shares is None else {gemm.value: measured(share) for gemm, share in shares},
        "floor": measured(answer.floor),
        "limit": measured(answer.limit),
        "next": as_json(answer.next),
        "notes": list(answer.notes),
    }


def _cure_document(cure: Cure) -> Document:
    change = None if cure.change is None else change_document(cure.change)
    return {**fields_of(replace(cure, change=None)), "change": change}


def _result_document(result: Shown) -> Document:
    gap, bounds = result.gap, [measured(result.recovered_low), measured(result.recovered_high)]
    return {
        "id": result.id,
        "valid": result.gate.is_valid,
        "as_planned": result.gate.as_planned.value,
        "reason": result.gate.reason,
        "gap": as_json(gap and gap.mean),
        "interval": as_json(gap and (gap.low, gap.high)),
        "recovered": measured(result.recovered),
        "recovered_interval": None if None in bounds else bounds,
        "answer": as_json(result.outcome),
        "note": result.note,
    }


def table(answer: Fp8Verdict) -> RenderableType:
    """Return a table of the verdict, the result of each experiment, the fix, and the experiments to run next."""
    decided = answer.kind not in {VerdictKind.UNDECIDED, VerdictKind.WEAK, VerdictKind.NOT_REPRODUCED}
    style = "bold red" if decided else "bold yellow"
    if answer.kind is VerdictKind.INNOCENT:
        style = "bold green"
    parts: list[RenderableType] = [
        line(_headline(answer), style=style),
        line(shown(f"{answer.because[:1].upper()}{answer.because[1:]}.")),
        line(),
        _table(answer),
    ]
    left_out = [
        experiment
        for experiment in answer.experiments
        if not experiment.gate.is_valid and experiment.gate.reason != _NO_LOG
    ]
    parts += listed("Left out:", [line(shown(f"{row.id}: {row.gate.reason}")) for row in left_out])
    if answer.shares is not None:
        rows = [(gemm.value, f"{share:+.4g}") for gemm, share in answer.shares]
        parts += [line(), line("Each product's share in the gap:", style="bold"), Pairs(rows)]
    if answer.cure is not None:
        parts += listed(_cure_title(answer.cure), [line(shown(flag)) for flag in _cure_lines(answer.cure)])
    for note in answer.notes:
        parts += [line(), line(shown(note), style="dim")]
    if answer.next is not None:
        ids, steps = ", ".join(answer.next.ids), counted(answer.next.steps, "step")
        parts += listed(f"Next, round {answer.next.round}:", [line(f"{ids} ({steps})")])
    return stack(*parts)


def _table(answer: Fp8Verdict) -> RenderableType:
    drawn = Table()
    for heading in ("ID", "COUNTS", "GAP", "RESTORED", "ANSWER"):
        drawn.add_column(heading, no_wrap=True, justify="right" if heading in {"GAP", "RESTORED"} else "left")
    for result in answer.experiments:
        counts = "yes" if result.gate.is_valid else "no"
        drawn.add_row(
            result.id,
            "no log" if result.gate.reason == _NO_LOG else counts,
            "" if result.gap is None else f"{result.gap.mean:+.4g}",
            "" if result.recovered is None else f"{result.recovered:.1%}",
            "" if result.outcome is None else result.outcome.value,
        )
    return drawn


def _headline(answer: Fp8Verdict) -> str:
    named = " and ".join(gemm.value for gemm in answer.culprits)
    operands = f"the {' and the '.join(operand.value for operand in answer.operands)} of " if answer.operands else ""
    layers = f", in the layers {answer.layers}" if answer.layers else ""
    return f"{_HEADLINES[answer.kind]}{f': {operands}{named}{layers}' if named else ''}"


def _cure_title(cure: Cure) -> str:
    effect = "all products stay in FP8" if cure.keeps_fp8 else "these products leave FP8"
    outcome = {True: "shown to help", False: "shown not to help", None: "not run yet"}[cure.restores]
    return f"Fix, as in {cure.id} ({effect}; {outcome}):"


def _cure_lines(cure: Cure) -> list[str]:
    change = cure.change
    if change is None:
        return [f"see the folder {cure.id}, once it is planned"]
    options = list(flags(change))
    return [*options, *(f"file {name} of the folder {cure.id}" for name, _ in change.files)] or list(change.notes)
