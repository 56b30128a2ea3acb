"""A summary in Markdown, for a job page or a comment: the checks, and the reasons of a no-go."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.domain.finding import summary_of
from ckpttool.core.domain.preflight import Lint, Preflight, Reason, Reported
from ckpttool.core.domain.units import counted
from ckpttool.core.render.answers.preflight import kinds, ranks_of, verdict, word
from ckpttool.core.render.escape import shown

MOST_ROWS = 500
"""Maximum number of kinds of reasons: GitHub accepts one megabyte of summaries per step. Every other format lists all
reasons."""

_MARKS = re.compile(r"[\\`*_{}\[\]#~$!@]|:(?=\S)|(?<=\bwww)\.", re.IGNORECASE)
"""Characters that Markdown, or a service that shows it, may interpret; a backslash escapes these."""

_CALLS = re.compile(r"@(?=\w)|(?<!&)#(?=\d)")
"""Characters that mention a person or link an issue even after a backslash, because services search the rendered
Markdown. A zero-width space after the character prevents this; other tools that write comments do the same."""

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
"""Characters that would end a cell or begin a tag; replacing them is safest."""


def summary(answer: Preflight | Lint | Reported) -> str:
    """Return a heading with the verdict, a table of the checks, and a table of the reasons, most severe first."""
    return "\n".join(_lines(answer))


def _lines(answer: Preflight | Lint | Reported) -> Iterator[str]:
    command = "preflight" if isinstance(answer, Preflight) else answer.command
    yield from (f"## ckpttool {command}: {plain(verdict(answer))}", "", "| | check | what was seen |", "|---|---|---|")
    for check in answer.checks:
        yield f"| {plain(word(check)[0])} | {plain(check.name)} | {plain(check.summary)} |"
    groups = kinds([reason for check in answer.checks for reason in check.reasons])
    if groups:
        yield from ("", "| weight | finding | what | fix |", "|---|---|---|---|")
    for kind in groups[:MOST_ROWS]:
        first = kind[0].finding
        message = summary_of([reason.finding for reason in kind], ranks_of(answer), answer.view)
        cells = (first.severity.word, first.code.value, f"{_place(kind[0])}{message}", first.remedy or "")
        yield f"| {' | '.join(map(plain, cells))} |"
    if len(groups) > MOST_ROWS:
        yield from ("", f"and {counted(len(groups) - MOST_ROWS, 'other kind')}")


def _place(reason: Reason) -> str:
    if reason.file is None:
        return ""
    return f"{reason.file}:{reason.finding.line}: " if reason.finding.line is not None else f"{reason.file}: "


def plain(text: str) -> str:
    """Escape text so that it is shown literally, on one line, inside a cell."""
    marked = _MARKS.sub(r"\\\g<0>", shown(text).strip())
    escaped = "".join(_ENTITIES.get(character, character) for character in marked)
    return _CALLS.sub(r"\g<0>&#8203;", escaped)
