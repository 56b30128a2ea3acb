"""Output for the result of recomputing a captured step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.units import counted, on_ranks
from ckpttool.core.formats.strict_json import measured, number
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import Columns, Pairs, line, stack
from ckpttool.guard.answers.nan_capture import gradient_document
from ckpttool.guard.model.capture import Difference, NanReplay, NanVerdict, Origin, OriginKind, RankReplay

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_WORDS = {
    NanVerdict.TRANSIENT: "transient: this device, or a random operation",
    NanVerdict.DEVICE: "device: that rank's device computes it wrongly, repeatedly",
    NanVerdict.DATA_OR_MODEL: "data or model, not the device",
    NanVerdict.UNDECIDED: "undecided",
}

_OF_A_WEIGHT = "the weight itself, as it was when the step began"
"""Verdict if a parameter was the origin. The cause is earlier, and may be a device."""


def document(answer: NanReplay) -> Document:
    """Return the document of the schema `ckpttool/nan-replay/1`."""
    return {
        "schema": "ckpttool/nan-replay/1",
        "capture": answer.capture,
        "step": answer.step,
        "device": answer.device,
        "exact": answer.exact,
        "verdict": answer.verdict.value,
        "why": answer.why,
        "reproduced": answer.reproduced,
        "ranks": [_rank(answer, rank) for rank in answer.ranks],
        "origin": None if answer.origin is None else _origin(answer.origin),
        "environment": [
            {"what": difference.what, "captured": difference.captured, "here": difference.here}
            for difference in answer.environment
        ],
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def _rank(answer: NanReplay, rank: RankReplay) -> Document:
    return {
        "rank": rank.rank,
        "losses_equal": rank.losses_equal,
        "losses": rank.losses,
        "micro_batches": rank.micro_batches,
        "losses_differ": list(rank.losses_differ),
        "gradients_equal": rank.gradients_equal,
        "gradients": rank.gradients,
        "pattern_differs": list(rank.pattern_differs),
        "norm_overflows": rank.norm_overflows,
        "norm_differs": rank.norm_differs,
        "nonfinite": [gradient_document(gradient) for gradient in rank.nonfinite],
        "culprit": any(culprit.rank == rank.rank for culprit in answer.culprits),
    }


def _origin(origin: Origin) -> Document:
    return {
        "rank": origin.rank,
        "micro_batch": origin.micro_batch,
        "phase": origin.phase,
        "kind": origin.kind.value,
        "op": origin.op,
        "module": origin.module,
        "line": origin.line,
        "shape": list(origin.shape),
        "nan": origin.nan,
        "inf": origin.inf,
        "value": number(origin.value),
        "times_rms": measured(origin.times_rms),
    }


def table(answer: NanReplay) -> RenderableType:
    """Return a table with the origin of the fault, the verdict, and whether the step was reproduced."""
    parts: list[RenderableType] = [_headline(answer), line()]
    if answer.environment and not answer.reproduced:
        parts += [line("Differs from the capture:"), _environment(answer.environment), line()]
    if answer.origin is not None:
        parts += [line("It began here:"), Pairs(_origin_rows(answer, answer.origin)), line()]
    if answer.ranks:
        parts += [_ranks(answer), line()]
        overflowing = [rank.rank for rank in answer.ranks if rank.norm_overflows]
        if overflowing:
            owner = f" of {on_ranks(overflowing)}" if len(answer.ranks) > 1 else ""
            parts += [line(f"Every gradient{owner} is finite, but the norm of all of them overflows."), line()]
    text = _WORDS[answer.verdict]
    if answer.verdict is NanVerdict.DATA_OR_MODEL and answer.origin is not None:
        text = _OF_A_WEIGHT if answer.origin.kind is OriginKind.PARAMETER else text
    parts += [line(f"Verdict: {text}", style="bold"), line(f"  {shown(answer.why)}")]
    for finding in answer.findings:
        parts.append(line(f"\n{finding.severity.word} {finding.code.value} {shown(finding.message)}"))
        if finding.remedy is not None:
            parts.append(line(f"  try: {shown(finding.remedy)}"))
    return stack(*parts)


def _headline(answer: NanReplay) -> Text:
    if answer.reproduced:
        return line(f"Step {answer.step} was reproduced, on {shown(answer.device)}", style="bold green")
    if not answer.ranks:
        return line(f"Step {answer.step} could not be recomputed", style="bold yellow")
    if any(finding.severity > Severity.NOTE for finding in answer.findings):
        return line(f"Step {answer.step} could only be partly recomputed", style="bold yellow")
    return line(f"Step {answer.step} was not reproduced, on {shown(answer.device)}", style="bold red")


def _environment(differences: tuple[Difference, ...]) -> RenderableType:
    rows = [
        [shown(difference.what), shown(str(difference.captured)), shown(str(difference.here))]
        for difference in differences
    ]
    return Columns([("what", 0), ("captured", 0), ("here", 0)], rows)


def _origin_rows(answer: NanReplay, origin: Origin) -> list[tuple[str, str]]:
    several = any(rank.micro_batches > 1 for rank in answer.ranks)
    where = f"rank {origin.rank}, " if len(answer.ranks) > 1 else ""
    where += f"micro-batch {origin.micro_batch + 1}, " if several else ""
    if origin.value is not None and origin.times_rms is not None:
        values = f"{origin.value:.3g}, {origin.times_rms:.2g} times the root mean square of its other elements"
    else:
        values = f"{counted(origin.nan, 'NaN', 'NaN')}, {counted(origin.inf, 'infinity', 'infinities')}"
    shape = "×".join(map(str, origin.shape)) or "scalar"
    noun = "operation" if origin.kind is OriginKind.OP else origin.kind.value
    rows = [(noun, f"{shown(origin.op)} ({where}{origin.phase})"), ("tensor", f"{shape}: {values}")]
    rows += [("module", shown(origin.module))] if origin.module else []
    return [*rows, *([("line", shown(origin.line))] if origin.line is not None else [])]


def _ranks(answer: NanReplay) -> RenderableType:
    rows = [
        [
            str(rank.rank),
            f"{rank.losses_equal} of {rank.losses}",
            f"{rank.gradients_equal} of {rank.gradients}",
            str(len(rank.nonfinite)),
            str(len(rank.pattern_differs)),
        ]
        for rank in answer.ranks
    ]
    heads = [("rank", 0), ("losses equal", 1), ("gradients equal", 2), (" not finite here", 3), (" only in one run", 4)]
    return Columns(heads, rows)
