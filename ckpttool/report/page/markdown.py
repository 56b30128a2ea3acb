"""The page for a comment or a chat, with the answer, the checkpoints and the findings.

It is short enough for a pull request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.units import counted
from ckpttool.core.render.markdown import plain
from ckpttool.report.model import TreeReport
from ckpttool.report.page import content
from ckpttool.report.page.resumed import resumed

MOST_FINDINGS = 20
"""Maximum number of findings to list individually. Others are counted."""

MOST_SAVES = 50
"""Maximum number of checkpoints in the table, newest first."""

MOST_CHARACTERS = 60_000
"""Maximum number of characters on a page. A comment on a pull request may have 65,536."""

_MOST_OF_A_CELL = 400
"""Maximum number of characters in a cell. Names and messages may be as long as the file system allows."""

MARKER = "<!-- ckpttool report -->"
"""The first line, which identifies a file as an earlier report."""


def markdown(report: TreeReport) -> str:
    """Return a report as a Markdown page of at most `MOST_CHARACTERS`."""
    lines = list(_lines(report))
    used, output = 0, []
    for line in lines:
        used += len(line) + 1
        if used > MOST_CHARACTERS - 100:
            output += ["", "(truncated: `ckpttool report --format html` shows all)"]
            break
        output.append(line)
    return "\n".join(output)


def _lines(report: TreeReport) -> Iterator[str]:
    lead = content.lead(report)
    yield from (MARKER, f"## ckpttool report: {_cell(lead.headline)}", "")
    yield " ".join([f"**{_cell(lead.word)}.**", *map(_cell, lead.sentences)])
    if lead.passed:
        yield ""
        yield from (f"- **{_cell(name)}** was not chosen: {_cell(why)}" for name, why in lead.passed)
    if lead.more_passed:
        yield f"- and {counted(lead.more_passed, 'more checkpoint')}"
    if lead.first:
        yield from ("", "**First rename, in the checkpoint folder**", "")
        yield from _block([f"{old} -> {new}" for old, new in lead.first])
    if lead.more_first:
        yield from ("", f"and {counted(lead.more_first, 'more file')}: `ckpttool resolve --json` has all")
    for kind, values in lead.load:
        yield from ("", f"**{_cell(kind)}**", "", *_block(values.split("\n")))
    if lead.facts:
        yield from ("", "| | |", "|---|---|")
        yield from (f"| {_cell(name)} | {_cell(value)} |" for name, value in lead.facts)
    yield from _saves(report)
    yield from _resume(report)
    yield from _findings(report)
    yield ""
    level = report.verification.level.word
    yield f"{_cell(report.verification.inventory.root)}, checked at level {level}; nothing was changed"


def _block(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines to copy literally, in a fence that no line can close."""
    fence = "`" * (1 + max(2, *(len(run) for line in lines for run in re.findall("`+|$", line))))
    yield from (fence, *lines, fence)


def _saves(report: TreeReport) -> Iterator[str]:
    saves = content.saves(report)
    if not saves:
        return
    yield from ("", "| checkpoint | step | size | verdict | health | |", "|---|--:|--:|---|---|---|")
    for save in saves[:MOST_SAVES]:
        cells = (save.name, save.step, save.size, save.verdict, save.health, save.fate)
        yield f"| {' | '.join(map(_cell, cells))} |"
    if len(saves) > MOST_SAVES:
        yield from ("", f"and {counted(len(saves) - MOST_SAVES, 'older checkpoint')}")


def _resume(report: TreeReport) -> Iterator[str]:
    if report.resume is None:
        return
    resume = resumed(report.resume)
    yield from (
        "",
        f"**Did the resume work?** {_cell(resume.headline)}",
        "",
        "| part | result | evidence |",
        "|---|---|---|",
    )
    for part in resume.parts:
        yield f"| {' | '.join(map(_cell, (part.name, part.state, part.why)))} |"
    yield from (f"\nAssumed: {_cell(assumption)}" for assumption in resume.assumptions)


def _findings(report: TreeReport) -> Iterator[str]:
    grave = [kind for kind in content.kinds(report, MOST_FINDINGS) if kind.severity > Severity.NOTE]
    if not grave:
        text = "No problems found by these checks."
        yield from ("", text if not isinstance(report.resolution.decision, NoResumePoint) else "")
        return
    yield from ("", "| severity | finding | where | message | fix |", "|---|---|---|---|---|")
    reported_lines = 0
    for kind in grave:
        for item in kind.findings[: max(MOST_FINDINGS - reported_lines, 0)]:
            reported_lines += 1
            where = " ".join(filter(None, (item.save, item.place)))
            remedy = item.finding.remedy or ""
            cells = (kind.severity.word, kind.code.value, where, item.finding.message, remedy)
            yield f"| {' | '.join(map(_cell, cells))} |"
    remaining = sum(kind.total for kind in grave) - reported_lines
    if remaining:
        yield from ("", f"and {counted(remaining, 'other finding')}")


def _cell(text: str) -> str:
    """Escape text so that a cell shows it literally, and truncate it to a readable length."""
    return plain(text if len(text) <= _MOST_OF_A_CELL else f"{text[: _MOST_OF_A_CELL - 1]}…")
