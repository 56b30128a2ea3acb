"""Prunings and repairs as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ckpttool.domain.pointer import PointerFix
from ckpttool.domain.retention import Fate, Pruning, Repair
from ckpttool.domain.verdict import Level
from ckpttool.render.answers.plan import NARROW, grouped_findings, pointer
from ckpttool.render.escape import shown, size
from ckpttool.render.text import stack, whole_words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

MOST_RECORDS = 4
"""Records shown of those that are written; thousands of ranks have the same trouble."""

_LOOKED = {
    None: "checksums compared where there are any, else headers",
    Level.STRUCTURE: "headers and sizes; no tensor data",
    Level.CHECKSUM: "every byte of what stays for the others",
    Level.NUMERICS: "every element of what stays for the others",
}


def pruning_table(pruning: Pruning) -> RenderableType:
    """Show what goes and what stays, and why, newest first."""
    plan = pruning.plan
    parts: list[RenderableType] = [_headline(pruning)]
    parts.append(Text(f"{shown(plan.root)} ({plan.layout.value}); {_LOOKED[pruning.order.level]}", style="dim"))
    if plan.fates:
        parts += [Text(""), _FateTable(plan.fates, done=pruning.applied)]
    parts += [Text(""), *_records(pruning.fixes)] if pruning.fixes else []
    parts += [*grouped_findings(pruning.refusals), *pointer(pruning.refusals)]
    outcome = _outcome(pruning)
    parts += [Text(""), *outcome] if outcome else []
    return stack(*parts)


def _headline(pruning: Pruning) -> Text:
    going, fates = len(pruning.plan.going), len(pruning.plan.fates)
    if not pruning.plan.good:
        text = "Nothing goes: no checkpoint here is known to be good to resume from"
        return Text(text, style="bold red")
    if not going:
        return Text(f"Nothing goes: {_stay(fates)}", style="bold green")
    what = f"{going} of {fates} checkpoints, {size(pruning.freed)}"
    if pruning.refusals:
        return Text(f"Refused: {what} could go, but nothing was changed", style="bold red")
    gone = ("deleted" if not pruning.order.trash_days else "moved to the trash") if pruning.applied else "would go"
    return Text(f"{what}: {gone}; {_stay(fates - going)}", style="bold green")


def _stay(number: int) -> str:
    return "1 stays" if number == 1 else f"{number} stay"


class _FateTable:
    """One line a checkpoint; on a narrow terminal only what the answer needs."""

    def __init__(self, fates: Sequence[Fate], *, done: bool) -> None:
        self._fates = fates
        self._go = "gone" if done else "go"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrow = options.max_width < NARROW
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("", no_wrap=True)
        table.add_column("NAME")
        if not narrow:
            table.add_column("STEP", justify="right", no_wrap=True)
            table.add_column("SIZE", justify="right", no_wrap=True)
            table.add_column("VERDICT", no_wrap=True)
            table.add_column("HEALTH", no_wrap=True)
        table.add_column("WHY")
        for fate in self._fates:
            one = fate.checkpoint
            word = Text(self._go, style="yellow") if fate.goes else Text("keep", style="green")
            step = "?" if one.step is None else str(one.step)
            verdict = "–" if fate.word is None else fate.word.value
            middle = () if narrow else (step, size(one.nbytes), verdict, one.health.value)
            table.add_row(word, Text(shown(one.name)), *middle, Text(shown(fate.because)))
        yield whole_words(table)


def _records(fixes: Sequence[PointerFix]) -> list[Text]:
    lines = [Text(f"{shown(fix.path)} {shown(fix.trouble)} -> {shown(fix.text.name)}") for fix in fixes[:MOST_RECORDS]]
    if len(fixes) > MOST_RECORDS:
        lines.append(Text(f"and {len(fixes) - MOST_RECORDS} more: --format json", style="dim"))
    return lines


def _outcome(pruning: Pruning) -> list[Text]:
    days = pruning.order.trash_days
    old = [one.name for one in pruning.trash if one.goes]
    kept = [one.name for one in pruning.trash if not one.goes]
    lines = []
    if old:
        verb = "deleted" if pruning.applied else "to be deleted"
        lines.append(Text(f"In the trash, {len(old)} from before: {verb}"))
    if kept:
        lines.append(Text(f"In the trash, {len(kept)} from before: kept until {days:g} days old"))
    if pruning.applied and pruning.plan.going and days:
        lines.append(Text(f"In the trash for {days:g} days: .ckpttool/trash; to undo, copy a folder's content back"))
    if not pruning.order.apply and not pruning.refusals and (pruning.plan.going or old):
        lines.append(Text("Dry run: nothing was changed. With --apply it is done."))
    return lines


def repair_table(repair: Repair) -> RenderableType:
    """Show which records do not name the newest whole checkpoint."""
    if repair.checkpoint is None:
        return stack(
            Text(f"Nothing in {shown(repair.root)} is whole, so nothing tells what to write", style="bold red")
        )
    name = shown(repair.checkpoint.name)
    target = name if repair.named else f"{name}, the newest whole checkpoint"
    if not repair.fixes:
        text = f"All records name {target}"
        if repair.refusals:
            text = f"Refused: all records name {name}, but whether they should is not known"
        headline = Text(text, style="bold red" if repair.refusals else "bold green")
        return stack(headline, *grouped_findings(repair.refusals), *pointer(repair.refusals))
    parts: list[RenderableType]
    one = len(repair.fixes) == 1
    count = "1 record" if one else f"{len(repair.fixes)} records"
    if repair.refusals:
        headline = Text(f"Refused: {count} {'does' if one else 'do'} not name {name}, and nothing was changed")
        headline.stylize("bold red")
    else:
        done = ("now names" if one else "now name") if repair.applied else "should name"
        headline = Text(f"{count} {done} {target}", style="bold green")
    parts = [headline, Text(shown(repair.root), style="dim"), Text(""), *_records(repair.fixes)]
    parts += [*grouped_findings(repair.refusals), *pointer(repair.refusals)]
    if not repair.apply and not repair.refusals:
        parts += [Text(""), Text("Dry run: nothing was changed. With --apply they are written.")]
    return stack(*parts)
