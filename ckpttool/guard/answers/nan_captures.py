"""Output for the captures of a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.units import counted
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.shell import quote
from ckpttool.core.render.text import Columns, line, stack
from ckpttool.guard.answers.nan_capture import culprits_document, findings_parts
from ckpttool.guard.model.capture import CaptureRow, Captures

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(answer: Captures) -> Document:
    """Return the document of the schema `ckpttool/nan-captures/1`."""
    return {
        "schema": "ckpttool/nan-captures/1",
        "path": answer.path,
        "captures": [
            {
                "path": capture.path,
                "step": capture.step,
                "time": capture.time,
                "world_size": capture.world_size,
                "ranks": [rank.rank for rank in capture.ranks],
                "level": next((rank.level.value for rank in capture.ranks), None),
                "bytes": sum(rank.shard.size for rank in capture.ranks),
                "culprits": culprits_document(capture),
                "findings": [finding_document(finding) for finding in capture.findings],
            }
            for capture in answer.captures
        ],
        "in_a_row": [row_document(row) for row in answer.in_a_row],
    }


def row_document(row: CaptureRow) -> Document:
    """Return a series of captures."""
    return {"first_step": row.first, "last_step": row.last, "captures": row.count, "path": row.path}


def table(answer: Captures) -> RenderableType:
    """Return a table with one capture per line, sorted by step."""
    row_of = {row.first: row for row in answer.in_a_row}
    later = {step for row in answer.in_a_row for step in row.later}
    rows = [
        [
            str(capture.step) if capture.step not in row_of else f"{capture.step}-{row_of[capture.step].last}",
            f"{len(capture.ranks)} of {capture.world_size}",
            ", ".join(str(culprit.rank) for culprit in capture.culprits) or "?",
            next((rank.level.value for rank in capture.ranks), "?"),
            size(sum(rank.shard.size for rank in capture.ranks)),
            capture.time or "?",
            shown(capture.path.rstrip("/").rpartition("/")[2]),
        ]
        for capture in answer.captures
        if capture.step not in later
    ]
    heads = [(" step", 0), ("ranks", 3), ("culprit", 1), ("level", 5), (" size", 4), ("captured", 6), ("name", 0)]
    parts: list[RenderableType] = [
        line(f"{counted(len(answer.captures), 'capture')} of steps that were not finite", style="bold"),
        line(),
        Columns(heads, rows),
    ]
    for capture in answer.captures:
        if blocking(capture.findings):
            parts += findings_parts(capture)
    for row in answer.in_a_row:
        text = f"\nSteps {row.first} to {row.last}: {row.count} in a row on the same weights, most likely one cause"
        parts.append(line(text))
    newest = answer.captures[-1].path
    if answer.in_a_row and answer.in_a_row[-1].last == answer.captures[-1].step:
        newest = answer.in_a_row[-1].path
    return stack(*parts, line(f"\nNext: ckpttool guard inspect {quote(newest)}", no_wrap=True))
