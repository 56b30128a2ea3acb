"""The logs behind an answer and their unreadable lines, for all answers about logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.metrics import NoteKind
from ckpttool.core.domain.units import counted
from ckpttool.core.formats.strict_json import number
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import Indented, line
from ckpttool.health.model.reading import LogReading

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MOST_LINES = 12
"""Maximum number of spans, events, marks or unreadable lines in a table; JSON lists all."""

_NOTES = {
    NoteKind.REWIND: "training went back from step {before} to {step}",
    NoteKind.COUNT_STOP: "training stopped at step {step}: too many norms in a row above the threshold",
    NoteKind.NORM_STOP: "training stopped at step {step} to repeat it: a norm above the threshold",
    NoteKind.NAN_STOP: "training stopped at step {step}: a NaN",
    NoteKind.CUT: "the last record is incomplete: the log is still being written, or its writer was stopped",
}


def reading_document(reading: LogReading) -> Document:
    """Encode the logs that were read, and their unreadable lines."""
    return {
        "sources": list(reading.sources),
        "steps": reading.steps,
        "notes": [
            {
                "kind": note.kind.value,
                "source": note.source,
                "line": note.line,
                "step": note.step,
                "previous_step": note.previous_step,
                "value": number(note.value),
                "count": note.count,
            }
            for note in reading.notes
        ],
        "problem_count": reading.problem_count,
        "problems": [
            {"source": problem.source, "line": problem.line, "reason": problem.reason, "text": problem.text}
            for problem in reading.problems
        ],
    }


def reading_parts(reading: LogReading) -> list[RenderableType]:
    """Show the steps at which training was resumed or stopped on its own, and the unreadable lines."""
    texts = []
    for note in reading.notes:
        place = f"{shown(note.source)}:{note.line}" if note.line else shown(note.source)
        texts.append(line(f"{place}: {_NOTES[note.kind].format(step=note.step, before=note.previous_step)}"))
    parts = listed("From the logs:", texts)
    if not reading.problem_count:
        return parts
    lines = []
    for problem in reading.problems[:MOST_LINES]:
        at = f":{problem.line}" if problem.line else ""
        lines.append(line(f"{shown(problem.source)}{at}: {problem.reason}"))
    title = f"{counted(reading.problem_count, 'unreadable line')}, not used:"
    more = reading.problem_count - len(lines)
    return parts + listed(title, lines) + ([line(f"  and {more} more", style="dim")] if more else [])


def listed(title: str, lines: Sequence[Text]) -> list[RenderableType]:
    """Show the first lines of a list, and the number of omitted lines."""
    if not lines:
        return []
    parts: list[RenderableType] = [line(), line(title, style="bold")]
    parts += [Indented(item) for item in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        parts.append(line(f"  and {len(lines) - MOST_LINES} more: --format json", style="dim"))
    return parts
