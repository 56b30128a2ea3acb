"""The answer of `seal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import NOT_SEEN, Code, Severity, blocking, worst
from ckpttool.core.domain.manifest import Sealed, Sealing
from ckpttool.core.domain.units import counted
from ckpttool.core.render.answers.inventory import world_size
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import line, stack

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(answer: Sealed) -> Document:
    """Return `ckpttool/seals/1`, the answer of `seal`, oldest checkpoint first."""
    return {"schema": "ckpttool/seals/1", "checkpoints": [*map(of_one, reversed(answer.sealings))]}


def of_one(sealing: Sealing) -> Document:
    """Return the result for one checkpoint."""
    return {
        "name": sealing.checkpoint,
        "manifest": sealing.path or None,
        "sealed": sealing.manifest is not None,
        "written": sealing.written,
        "shards": len(sealing.manifest.shards) if sealing.manifest else 0,
        "first_seen": min((seal.first_seen for seal in sealing.manifest.shards), default=None)
        if sealing.manifest
        else None,
        "unproven": sealing.unproven,
        "findings": [finding_document(finding) for finding in sealing.findings],
    }


def table(answer: Sealed) -> RenderableType:
    """Show the answer of `seal`."""
    if not answer.sealings:
        return stack(line(f"No checkpoint in {shown(answer.inventory.root)}", style="bold red"))
    lines: list[RenderableType] = []
    for sealing in answer.sealings:
        if sealing.manifest is None:
            lines.append(line(f"{shown(sealing.checkpoint)}: not sealed, {_why_not(sealing)}", style="bold red"))
            continue
        shards = sealing.manifest.shards
        done, style = "sealed" if sealing.written else "sealed before, unchanged", "bold green"
        if sealing.findings:
            done, style = "sealed again; an older seal differed", "bold yellow"
        if blocking(sealing.findings):
            done, style = "differs from its seal; the old seal is kept", "bold red"
        since = min((seal.first_seen for seal in shards), default=sealing.manifest.sealed_at)
        headline = line(f"{shown(sealing.checkpoint)}: {done}", style=style)
        headline.append(
            f"  ({len(shards)} shard{'s' * (len(shards) != 1)}, first seen {since}, {shown(sealing.path)})",
            style="dim",
        )
        lines.append(headline)
        if sealing.unproven:
            unproven = (
                f"  {sealing.unproven} of {counted(len(shards), 'shard')} had no checksum or proven copy: damage from "
                "before this seal is not detected"
            )
            lines.append(line(unproven, style="dim"))
    findings = [finding for sealing in answer.sealings for finding in sealing.findings]
    return stack(*lines, *grouped_findings(findings, world_size(answer.inventory)), *pointer(findings))


_WHY_NOT = (
    ({Code.CANNOT_ANSWER}, "there is no place for its seal"),
    ({Code.MANIFEST_NEWER}, "it was sealed by a newer ckpttool"),
    ({Code.MANIFEST_UNREADABLE}, "its existing manifest cannot be trusted"),
    ({Code.REPLICA_DIFFERS, Code.REPLICA_STALE}, "its copies differ"),
    ({Code.FOUND_DAMAGED}, "it was found damaged before"),
    ({*NOT_SEEN, Code.UNSUPPORTED_FORMAT}, "it could not be read completely"),
)
"""Codes with their messages, most severe first."""


def _why_not(sealing: Sealing) -> str:
    codes = {finding.code for finding in blocking(sealing.findings)}
    is_known = worst(sealing.findings) is not Severity.UNKNOWN
    least = "it is not intact" if is_known else "it was read, but whether it is intact is unknown"
    return next((why for of, why in _WHY_NOT if codes & of), least)
