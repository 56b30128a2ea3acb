"""The contents of a tree's trash, and the result of a command on it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckpttool.core.domain.retention import InTrash, Trash, TrashAction
from ckpttool.core.domain.units import ByteCount, counted
from ckpttool.core.render.answers.inventory import to_the_minute
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.shell import quote
from ckpttool.core.render.text import Table, line, stack

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def document(trash: Trash) -> Document:
    """Return `ckpttool/trash/1`, oldest entry first."""
    return {
        "schema": "ckpttool/trash/1",
        "root": trash.root,
        "layout": trash.layout,
        "action": trash.action.value,
        "applied": trash.applied,
        "older_than": trash.older_than,
        "trash": [
            {
                "folder": save.folder,
                "name": save.name,
                "prefix": save.prefix,
                "step": save.step,
                "bytes": save.nbytes,
                "since": _at(save.since),
                "expires": _expires(trash, save),
                "taken": save.taken,
            }
            for save in trash.content
        ],
        "bytes": _sum(trash.content),
        "bytes_taken": _sum(trash.taken),
        "findings": [finding_document(finding) for finding in trash.findings],
    }


def _sum(saves: tuple[InTrash, ...]) -> ByteCount | None:
    sizes = [save.nbytes for save in saves]
    return None if None in sizes else ByteCount(sum(nbytes for nbytes in sizes if nbytes is not None))


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _expires(trash: Trash, save: InTrash) -> str | None:
    """Return the time at which an entry reaches the requested age."""
    return _at(save.since + trash.older_than) if trash.older_than else None


def table(trash: Trash) -> RenderableType:
    """Show the contents of the trash, newest first."""
    parts: list[RenderableType] = [_headline(trash), line(f"{shown(trash.root)} ({trash.layout})", style="dim")]
    listed = trash.taken if trash.action is TrashAction.RESTORE else trash.content
    if listed:
        parts += [line(), _rows(trash, listed)]
    parts += [*grouped_findings(trash.findings), *pointer(trash.findings)]
    return stack(*parts, *_advice(trash))


def _headline(trash: Trash) -> Text:
    number = counted(len(trash.content), "checkpoint")
    if trash.action is TrashAction.RESTORE:
        names = ", ".join(shown(save.name) for save in trash.taken)
        return line(f"{names}: restored", style="bold yellow" if trash.findings else "bold green")
    if not trash.content:
        return line("The trash is empty", style="bold green")
    if trash.action is TrashAction.LIST:
        return line(f"{number} in the trash, {size(_sum(trash.content))}", style="bold green")
    if not trash.taken:
        return line(f"Nothing to delete: {number} in the trash, none old enough", style="bold green")
    summary = f"{len(trash.taken)} of {number} in the trash, {size(_sum(trash.taken))}"
    if trash.interrupted:
        return line(f"Refused: {summary} may be deleted; nothing was changed", style="bold red")
    return line(f"{summary}: {'deleted' if trash.applied else 'would be deleted'}", style="bold green")


def _rows(trash: Trash, listed: tuple[InTrash, ...]) -> RenderableType:
    empties, times = trash.action is TrashAction.EMPTY, trash.action is TrashAction.LIST and bool(trash.older_than)
    named = Counter(save.name for save in trash.content)
    table = Table()
    if empties:
        table.add_column("", no_wrap=True)
    table.add_column("NAME")
    prefixes = len({save.prefix for save in trash.content if save.prefix is not None}) > 1
    if prefixes:
        table.add_column("PREFIX")
    for heading in ("STEP", "SIZE"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("SINCE (UTC)", no_wrap=True)
    if times:
        table.add_column("UNTIL (UTC)", no_wrap=True)
    for save in reversed(listed):
        cell = line("keep", style="green")
        if save.taken:
            cell = line("gone" if trash.applied else "drop", style="yellow")
        name = save.name if named[save.name] == 1 else save.folder
        step = "?" if save.step is None else str(save.step)
        until = (to_the_minute(_expires(trash, save) or ""),) if times else ()
        first = (cell,) if empties else ()
        own_prefix = line("?" if save.prefix is None else shown(save.prefix))
        prefix = (own_prefix,) if prefixes else ()
        table.add_row(
            *first, line(shown(name)), *prefix, step, size(save.nbytes), to_the_minute(_at(save.since)), *until
        )
    return table


def _advice(trash: Trash) -> list[Text]:
    if trash.action is TrashAction.LIST and trash.content and not trash.interrupted:
        command = f"ckpttool trash restore NAME {quote(trash.root)}"
        text = "Each prune deletes what is older than its --trash-days. To restore one:"
        return [line(), line(text), line(command, no_wrap=True)]
    if trash.action is TrashAction.LIST and not trash.content:
        return [line("ckpttool prune --trash-days 7d keeps deleted checkpoints here for seven days")]
    if trash.action is TrashAction.EMPTY and trash.taken and not trash.apply and not trash.interrupted:
        return [line(), line("Dry run: nothing was changed. Pass --apply to carry it out.")]
    return []
