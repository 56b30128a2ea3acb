"""Output for the capture of a non-finite step, as JSON and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.units import counted, on_ranks
from ckpttool.core.formats.strict_json import number
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.shell import quote
from ckpttool.core.render.text import Columns, Pairs, line, stack
from ckpttool.guard.model.capture import (
    Capture,
    CaptureLevel,
    GradientFacts,
    LossBits,
    MicroBatch,
    RankCapture,
    norm_overflows,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_ROWS = 8
"""Number of gradients in the table. JSON lists all gradients."""


def document(answer: Capture) -> Document:
    """Return the document of the schema `ckpttool/nan-capture/1`."""
    return {
        "schema": "ckpttool/nan-capture/1",
        "path": answer.path,
        "resumable": False,
        "step": answer.step,
        "time": answer.time,
        "world_size": answer.world_size,
        "culprits": culprits_document(answer),
        "ranks": [_rank(rank) for rank in answer.ranks],
        "next": list(_next(answer)),
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def culprits_document(answer: Capture) -> Document:
    """Return the ranks on which the fault began."""
    return [{"rank": culprit.rank, "why": culprit.why} for culprit in answer.culprits]


def _rank(rank: RankCapture) -> Document:
    rerun = rank.rerun
    return {
        "rank": rank.rank,
        "host": rank.host,
        "device": rank.device,
        "optimizer_step": rank.optimizer_step,
        "level": rank.level.value,
        "bytes": rank.shard.size,
        "micro_batches": [_micro_batch(batch) for batch in rank.micro_batches],
        "gradients": len(rank.gradients),
        "nonfinite": [gradient_document(gradient) for gradient in rank.bad_gradients],
        "again_in_place": None
        if rerun is None
        else {
            "finite": rerun.is_finite,
            "losses": [_loss(loss) for loss in rerun.losses],
            "nonfinite": [gradient.name for gradient in rerun.gradients if not gradient.is_finite],
        },
        "environment": dict(rank.environment),
    }


def _micro_batch(batch: MicroBatch) -> Document:
    left_out = batch.left_out
    return {
        "loss": None if batch.loss is None else _loss(batch.loss),
        "changed": batch.changed,
        "left_out": None if left_out is None else {"path": left_out.path, "reason": left_out.reason},
    }


def _loss(loss: LossBits) -> Document:
    return {"value": number(loss.value), "dtype": loss.dtype, "bits": loss.bits}


def gradient_document(gradient: GradientFacts) -> Document:
    """Return the record of a gradient."""
    return {
        "name": gradient.name,
        "shape": list(gradient.shape),
        "norm": number(gradient.norm),
        "nan": gradient.nan,
        "inf": gradient.positive_inf + gradient.negative_inf,
        "first": None if gradient.first is None else list(gradient.first),
    }


def table(answer: Capture) -> RenderableType:
    """Return a table of the rank, the non-finite values, and the next action."""
    parts: list[RenderableType] = [line(headline(answer), style="bold red"), line(), Pairs(_facts(answer))]
    for rank in answer.ranks:
        if rank.bad_gradients:
            of = f" on rank {rank.rank}" if answer.world_size > 1 else ""
            total = counted(len(rank.gradients), "gradient")
            parts += [
                line(f"\nNot finite{of}: {len(rank.bad_gradients)} of {total}"),
                gradients_table(rank.bad_gradients),
            ]
        elif rank.bad_losses:
            of = f" of rank {rank.rank}" if answer.world_size > 1 else ""
            parts.append(line(f"\nOnly the loss{of}: {counted(len(rank.gradients), 'gradient')}, all finite"))
        elif norm_overflows(rank.gradients):
            of = f" on rank {rank.rank}" if answer.world_size > 1 else ""
            largest = sorted(rank.gradients, key=lambda gradient: -gradient.norm)[:_MOST_ROWS]
            # Each norm beyond float32 as inf.
            norms = [[shown(gradient.name), f"{gradient.norm:.3g}"] for gradient in largest]
            parts.append(line(f"\nFinite{of}, but so large that their norm overflows:"))
            parts.append(Columns([("gradient", 0), (" norm", 1)], norms))
    parts += findings_parts(answer)
    parts += [line("\nNext:"), *(line(f"  {command}", style="bold", no_wrap=True) for command in _next(answer))]
    if answer.has_stopped is False:
        parts.append(line("The training continued without this update; it needs no action.", style="dim"))
    return stack(*parts)


def headline(answer: Capture) -> str:
    """Describe the capture in one line."""
    if not answer.culprits:
        return f"Step {answer.step} was not finite; the rank on which it began is unknown"
    if answer.world_size == 1:
        return f"Step {answer.step}: {answer.culprits[0].why}"
    ranks = on_ranks([culprit.rank for culprit in answer.culprits])
    return f"Step {answer.step} was not finite: it began on {ranks} of {answer.world_size}"


def _facts(answer: Capture) -> list[tuple[str, str]]:
    rows = []
    if answer.world_size > 1:
        rows = [(f"rank {culprit.rank}", culprit.why) for culprit in answer.culprits]
    if answer.time is not None:
        rows.append(("captured", answer.time))
    is_transient = all(rank.rerun is not None and rank.rerun.is_finite for rank in answer.ranks)
    for rank in answer.ranks:
        of = f"rank {rank.rank} " if answer.world_size > 1 else ""
        losses = ", ".join(f"{batch.loss.value:g}" for batch in rank.micro_batches if batch.loss is not None)
        has_batches = any(batch.left_out is None for batch in rank.micro_batches)
        contents = "batches, random-number state" if has_batches else "no batches"
        contents = f"weights, {contents}" if rank.level is CaptureLevel.FULL else f"{contents}; no weights"
        rows += [
            (f"{of}losses", losses or "not recorded"),
            (f"{of}contents", f"{contents}: {size(rank.shard.size)}, {shown(rank.device)}"),
        ]
        if rank.rerun is not None:
            rerun = "finite" if rank.rerun.is_finite else "not finite again"
            rows.append((f"{of}repeated", f"{rerun}: transient" if is_transient else rerun))
    environment = dict(answer.ranks[0].environment) if answer.ranks else {}
    facts = [f"{name} {environment[name]}" for name in ("torch", "python", "threads") if name in environment]
    return [*rows, ("environment", shown(", ".join(facts)))] if facts else rows


def gradients_table(gradients: tuple[GradientFacts, ...]) -> RenderableType:
    """Return a table of the first gradients."""
    rows = [
        [
            shown(gradient.name),
            "×".join(map(str, gradient.shape)) or "scalar",
            str(gradient.nan),
            str(gradient.positive_inf + gradient.negative_inf),
            "" if gradient.first is None else f"[{', '.join(map(str, gradient.first))}]",
        ]
        for gradient in gradients[:_MOST_ROWS]
    ]
    parts: list[RenderableType] = [
        Columns([("gradient", 0), ("shape", 3), (" nan", 1), (" inf", 2), ("first", 4)], rows)
    ]
    if len(gradients) > _MOST_ROWS:
        parts.append(line(f"and {len(gradients) - _MOST_ROWS} more; --json shows all", style="dim"))
    return stack(*parts)


def findings_parts(answer: Capture) -> list[RenderableType]:
    """Return the problems of the capture, with remedies."""
    lines = []
    for finding in answer.findings:
        lines.append(line(f"{finding.severity.word} {finding.code.value} {shown(finding.message)}"))
        if finding.remedy is not None:
            lines.append(line(f"  try: {shown(finding.remedy)}"))
    return [line(), *lines] if lines else []


def _next(answer: Capture) -> tuple[str, ...]:
    """Return the commands that reproduce the step and, if the training run stopped, resume it."""
    place = answer.path.rstrip("/")
    command = f"ckpttool guard replay {quote(place)} --entry MODULE:FUNCTION"
    commands = [command]
    if all(rank.level is CaptureLevel.FULL for rank in answer.ranks):
        commands.append(f"ckpttool guard run --replay {quote(place)} -- COMMAND...")
    if answer.has_stopped is not True:
        return tuple(commands)
    output = place.rpartition("/guard/captures/")[0] or "OUTPUT"
    log = quote(f"{output}/guard/events-*.jsonl")
    return (*commands, f"ckpttool resolve {quote(output)} --log {log} --around-spike last")
