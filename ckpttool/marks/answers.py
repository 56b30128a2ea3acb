"""The answer of `mark`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.units import counted, step_and_name
from ckpttool.core.render.answers.inventory import to_the_minute
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import Table, line, stack
from ckpttool.marks.model import Mark, MarkedSave, MarkKind, Marks, MarkState
from ckpttool.marks.reading import clear_command

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def document(answer: Marks) -> Document:
    """Return `ckpttool/marks/1`, in the order of the saves."""
    return {
        "schema": "ckpttool/marks/1",
        "root": answer.root,
        "layout": answer.layout,
        "marks": [
            {"name": marked.name, "state": marked.state.value, **_of_mark(marked.mark)} for marked in answer.marks
        ],
        "written": None
        if answer.written is None
        else {"name": answer.written.checkpoint, "path": answer.path, **_of_mark(answer.written)},
        "dry_run": answer.is_dry_run,
        "unchanged": answer.unchanged,
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def _of_mark(mark: Mark) -> dict[str, Document]:
    return {
        "mark": mark.kind.value,
        "step": mark.step,
        "reason": mark.reason,
        "by": mark.by,
        "at": mark.at,
        "automatic": mark.is_automatic,
    }


def table(answer: Marks) -> RenderableType:
    """Show the change, if there is one, and the marks."""
    parts: list[RenderableType] = [*_headlines(answer)]
    if answer.marks:
        parts += [line(), _rows(answer)]
    parts += [*grouped_findings(answer.findings), *pointer(answer.findings)]
    present = [marked for marked in _newest_first(answer) if marked.state is not MarkState.ABSENT]
    if present:
        command = clear_command(present[0].name, answer.root)
        parts += [line(), line(f"To remove a mark: {command}", style="dim")]
    return stack(*parts)


def _headlines(answer: Marks) -> list[Text]:
    where = line(f"{shown(answer.root)} ({answer.layout})", style="dim")
    if answer.unchanged is not None:
        return [line(shown(answer.unchanged), style="bold"), where]  # may begin with a name, which keeps its case
    written = answer.written
    if written is None:
        count = len(answer.marks)
        marked = counted(count, "marked checkpoint") if count else "No marked checkpoint"
        return [line(marked, style="bold"), where]
    name = step_and_name(written.step, shown(written.checkpoint))
    would = "would be" if answer.is_dry_run else "is"
    done = f"{would} marked as {written.kind.value}"
    if written.kind is MarkKind.CLEARED:
        done = f"{would} no longer marked"
    reason = f": {shown(written.reason)}" if written.reason else ""
    style = "bold yellow" if written.kind is MarkKind.BAD else "bold green"
    return [line(f"{name} {done}{reason}", style=style), where]


_STATES = {
    MarkState.COUNTS: "",
    MarkState.STALE: "does not count: the files were written again",
    MarkState.UNKNOWN: "unknown: the files cannot be compared",
    MarkState.ABSENT: "no such checkpoint in the tree",
}


def _newest_first(answer: Marks) -> list[MarkedSave]:
    """Return the marks of the newest save first, and those of absent saves last."""
    present = [marked for marked in answer.marks if marked.state is not MarkState.ABSENT]
    return [*reversed(present), *(marked for marked in answer.marks if marked.state is MarkState.ABSENT)]


def _rows(answer: Marks) -> Table:
    rows = Table(gap=2)
    for header in ("NAME", "STEP", "MARK", "AT (UTC)", "BY", "REASON"):
        rows.add_column(header, justify="right" if header == "STEP" else "left", no_wrap=header != "REASON")
    for marked in _newest_first(answer):
        rows.add_row(*_row(marked))
    return rows


def _row(marked: MarkedSave) -> tuple[str, ...]:
    mark = marked.mark
    texts = [text for text in (_STATES[marked.state], shown(mark.reason or "")) if text]
    step = "?" if mark.step is None else str(mark.step)
    return shown(marked.name), step, mark.kind.value, to_the_minute(mark.at), shown(mark.author), "; ".join(texts)
