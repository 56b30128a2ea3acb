"""Go or no-go for people, in one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ckpttool.domain.finding import told
from ckpttool.domain.preflight import Lint, Outcome, Preflight, Reason
from ckpttool.domain.units import counted
from ckpttool.errors import ExitCode
from ckpttool.render.answers.plan import pointer
from ckpttool.render.answers.preflight_document import blocking_reasons, kinds, ranks_of, verdict
from ckpttool.render.escape import shown
from ckpttool.render.text import Indented, Pairs, stack

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_REASONS = 6
"""Kinds of reasons that one screen shows; every other format has all."""

MOST_NOTES = 4
"""Kinds of notes that one screen shows, and only where nothing weighs more."""

_WORD = {
    Outcome.PASSED: ("ok", "green"),
    Outcome.SKIPPED: ("-", "dim"),
    Outcome.UNKNOWN: ("?", "yellow"),
    Outcome.FAILED: ("NO", "bold red"),
}


def report_table(answer: Preflight | Lint, code: ExitCode) -> RenderableType:
    """Show the answer, what was looked at, and why not."""
    checks, go = answer.checks, answer.go
    longest = max((len(word) for word, _ in _WORD.values()), default=0)
    rows = []
    for check in checks:
        unsure = check.unsure and check.outcome is Outcome.PASSED
        word, style = _WORD[Outcome.UNKNOWN if unsure else check.outcome]
        name = Text(f"{word:{longest}}", style=style).append(f"  {shown(check.name)}", style="")
        rows.append((name, shown(check.summary)))
    parts: list[RenderableType] = [Text(verdict(answer, code), style="bold green" if go else "bold red"), Text("")]
    parts.append(Pairs(rows))
    against, world = blocking_reasons(checks), ranks_of(answer)
    parts += _listed(against, MOST_REASONS, "red", world)
    notes = [reason for check in checks for reason in check.reasons if not reason.blocks]
    if go:
        parts += _listed(notes, MOST_NOTES, "dim", world)
    elif notes:
        parts.append(Text(f"\nand {counted(len(notes), 'note')}: --format json", style="dim"))
    return stack(*parts, *pointer([reason.finding for reason in against]))


def _listed(reasons: Sequence[Reason], most: int, style: str, world: int | None) -> Iterator[RenderableType]:
    groups = kinds(reasons)
    for kind in groups[:most]:
        first = kind[0].finding
        text = Text(first.severity.word, style=style)
        text.append(f" {first.code.value}", style="bold")
        message = told([each.finding for each in kind], world)
        text.append(f" {_place(kind[0])}{shown(message)}", style="")
        yield Text("")
        yield text
        if first.remedy:
            yield Indented(Text(f"fix: {shown(first.remedy)}", style="dim"))
    if len(groups) > most:
        yield Text(f"\nand {len(groups) - most} other kinds: --format json", style="dim")


def _place(reason: Reason) -> str:
    if reason.file is None:
        return ""
    line = f":{reason.finding.line}" if reason.finding.line is not None else ""
    return f"{shown(reason.file)}{line}: "
