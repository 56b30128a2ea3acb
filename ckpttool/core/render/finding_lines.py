"""Render findings and the health of a save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Finding, Row, Severity, summary_of
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.render.escape import shown
from ckpttool.core.render.text import Indented, line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MOST_FINDINGS = 8
"""Maximum kinds of findings in a table; JSON has every finding."""

HEALTH_STYLE = {Health.HEALTHY: "green", Health.UNHEALTHY: "red", Health.UNKNOWN: "dim"}

_STYLE = {
    Severity.NOTE: "dim",
    Severity.SUSPECT: "yellow",
    Severity.UNKNOWN: "yellow",
    Severity.DAMAGE: "red",
    Severity.UNSAFE: "bold red",
}


def grouped_findings(
    findings: Sequence[Finding], world: int | None = None, view: View | None = None
) -> list[RenderableType]:
    """Show findings, most severe first, grouped by code, each with its remedy.

    Args:
        findings: The findings, in any order.
        world: Number of ranks, if known.
        view: The amount to show; None if a command has no option for the view.
    """
    if not findings:
        return []
    kinds, messages = kinds_of(findings, view or USUAL), set[str]()
    most = len(kinds) if view is not None and view.everything else MOST_FINDINGS
    parts: list[RenderableType] = [line()]
    for kind in kinds[:most]:
        parts += kind_parts(kind, world, messages, view or USUAL)
    if len(kinds) > most:
        shown_by = "--format json" if view is None else "-v"
        parts.append(line(f"and {counted(len(kinds) - most, 'other kind')}: {shown_by}", style="dim"))
    return parts


def kinds_of(findings: Sequence[Finding], view: View = USUAL) -> list[list[Finding]]:
    """Group findings by code, most severe first, so that 500 lost shards take one line, except in the full view."""
    if view.everything:
        return [[finding] for finding in sorted(findings, key=lambda finding: -finding.severity)]
    groups: dict[Row, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: -finding.severity):
        groups.setdefault(finding.code, []).append(finding)
    return list(groups.values())


def kind_parts(
    kind: Sequence[Finding], world: int | None, messages: set[str], view: View = USUAL, *, by: int = 0
) -> Iterator[RenderableType]:
    """Show the first finding of a kind, all its ranks, and the remedy, unless the remedy was shown just above."""
    yield Indented(_finding(kind, world, view), by)
    remedy = kind[0].remedy
    needs_action = kind[0].severity > Severity.NOTE or kind[0].code in _NOTES_TO_ACT_ON
    if remedy is not None and needs_action and remedy not in messages:
        messages.add(remedy)
        yield Indented(line(f"try: {shown(remedy)}"), by + 2)


_NOTES_TO_ACT_ON = frozenset({Code.START_DIFFERS})
"""Codes of notes that are shown with their remedy: they become true with the next start."""


def _finding(kind: Sequence[Finding], world: int | None, view: View) -> Text:
    finding, message = kind[0], shown(summary_of(kind, world, view))
    text = line(finding.severity.word, style=_STYLE[finding.severity])
    text.append(f" {finding.code.value}", style="bold")
    where = shown(finding.path) if finding.path else ""
    at = f":{finding.line}" if finding.line is not None else ""
    text.append(f" {where}{at}: {message}" if where else f" {message}", style="")
    return text


_SUMS_UP = frozenset({Code.NOTHING_TO_RESUME})
"""Codes of findings that only repeat the headline."""


def pointer(findings: Iterable[Finding]) -> list[RenderableType]:
    """Return a reference to the manual for the most severe finding, if any finding is more than a note."""
    gravest = max(findings, key=lambda finding: (finding.severity, finding.code not in _SUMS_UP), default=None)
    if gravest is None or gravest.severity is Severity.NOTE:
        return []
    return [line(""), line(f"What it means: ckpttool explain {gravest.code.value}", style="dim")]
