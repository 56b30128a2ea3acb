"""The answer of `repair pointer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.retention import Repair
from ckpttool.core.domain.units import counted
from ckpttool.core.render.changes import grace_option, refused
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.pointer_records import record_lines, records_document
from ckpttool.core.render.shell import join
from ckpttool.core.render.text import line, stack

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(repair: Repair) -> Document:
    """Return `ckpttool/repair/1`: the records that need correcting, or were corrected."""
    return {
        "schema": "ckpttool/repair/1",
        "root": repair.root,
        "layout": repair.layout,
        "applied": repair.applied,
        "checkpoint": None if repair.checkpoint is None else repair.checkpoint.name,
        "records_read": repair.read,
        "records": records_document(repair.fixes),
        "findings": [finding_document(finding) for finding in repair.refusals],
    }


def table(repair: Repair) -> RenderableType:
    """Show the records that do not name the newest intact checkpoint."""
    if repair.checkpoint is None:
        nothing = f"No checkpoint in {shown(repair.root)} is intact, so there is nothing to write"
        unknown = f"The newest intact checkpoint in {shown(repair.root)} is unknown, so nothing can be written"
        reason = nothing if repair.is_sure else unknown
        refusals = () if repair.is_sure else repair.refusals
        return stack(line(reason, style="bold red"), *grouped_findings(refusals), *pointer(refusals))
    name = shown(repair.checkpoint.name)
    target = name if repair.named else f"{name}, the newest intact checkpoint"
    if not repair.fixes:
        text = f"All records name {target}"
        if not repair.read:
            text = f"{repair.layout} keeps no record that names its last save: nothing to repair"
        elif repair.refusals:
            text = f"Refused: all records name {name}, but whether they should is unknown"
        elif repair.able < repair.read:
            text = f"{repair.able} of {counted(repair.read, 'record')} name {target}; the others cannot"
        headline = line(text, style="bold red" if repair.refusals else "bold green")
        return stack(headline, *grouped_findings(repair.refusals), *pointer(repair.refusals))
    parts: list[RenderableType]
    single = len(repair.fixes) == 1
    count = counted(len(repair.fixes), "record")
    if repair.refusals:
        verb = "does" if single else "do"
        text = f"{count} {verb} not name {name}"
        headline = line(refused(text, apply=repair.apply))
        headline.stylize("bold red")
    else:
        done = "should name"
        if repair.applied:
            done = "now names" if single else "now name"
        headline = line(f"{count} {done} {target}", style="bold green")
    parts = [headline, line(shown(repair.root), style="dim"), line(), *record_lines(repair.fixes)]
    parts += [*grouped_findings(repair.refusals), *pointer(repair.refusals)]
    if not repair.apply and not repair.refusals:
        them = "it" if single else "them"
        parts += [line(), line(f"Dry run: nothing was changed. To correct {them}:")]
        parts.append(line(_command(repair, name=repair.checkpoint.name), no_wrap=True))
    return stack(*parts)


def _command(repair: Repair, *, name: str) -> str:
    """Return the command that writes the records."""
    options = ["--checkpoint", name] if repair.named else []
    options += [] if repair.prefix is None else ["--prefix", repair.prefix]
    options += grace_option(repair.grace)
    return join(["ckpttool", "repair", "pointer", repair.root, *options, "--apply"])
