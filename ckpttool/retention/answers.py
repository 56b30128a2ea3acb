"""The answer of `prune`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.retention import Elsewhere, Fate, Pruning, Reached, Why
from ckpttool.core.domain.units import ByteCount, counted
from ckpttool.core.domain.verdict import Level
from ckpttool.core.render.changes import refused
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.pointer_records import record_lines, records_document
from ckpttool.core.render.shell import join, quote
from ckpttool.core.render.text import NARROW, Table, line, stack

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

_LOOKED = {
    None: "checksums compared if there are any, otherwise headers",
    Level.STRUCTURE: "headers and sizes; no tensor data",
    Level.CHECKSUM: "every byte of the checkpoints that replace others",
    Level.NUMERICS: "every element of the checkpoints that replace others",
}


def document(pruning: Pruning) -> Document:
    """Return `ckpttool/prune/1`, oldest checkpoint first."""
    plan, policy = pruning.plan, pruning.plan.policy
    return {
        "schema": "ckpttool/prune/1",
        "root": plan.root,
        "layout": plan.layout,
        "applied": pruning.applied,
        "evidence": "auto" if pruning.order.level is None else pruning.order.level.word,
        "policy": {
            "keep_last": policy.keep_last,
            "keep_every": policy.keep_every,
            "keep_healthy": policy.keep_healthy,
            "keep_within": policy.keep_within,
            "keep_hourly": policy.keep_hourly,
            "keep_daily": policy.keep_daily,
            "keep_weekly": policy.keep_weekly,
            "keep": list(policy.keep),
            "drop_abandoned": policy.drop_abandoned,
            "prefix": policy.prefix,
        },
        "checkpoints": [_fate(fate) for fate in reversed(plan.fates)],
        "bytes_to_go": pruning.freed,
        "records": records_document(pruning.fixes),
        "space": [_reached(reached) for reached in pruning.reached],
        "trash_days": pruning.order.trash_days,
        "trash": [{"name": entry.name, "goes": entry.goes} for entry in pruning.trash],
        "findings": [finding_document(finding) for finding in (*pruning.refusals, *pruning.remarks)],
        **({} if pruning.elsewhere is None else {"elsewhere": [*map(_files, pruning.elsewhere)]}),
    }


def _files(elsewhere: Elsewhere) -> Document:
    return {
        "host": elsewhere.host,
        "name": elsewhere.checkpoint,
        "bytes": elsewhere.nbytes,
        "paths": list(elsewhere.paths),
    }


def _reached(reached: Reached) -> Document:
    return {
        "aim": reached.aim,
        "of": reached.of,
        "bytes": reached.nbytes,
        "before": reached.before,
        "after": reached.after,
        "missing": reached.missing,
    }


def _fate(fate: Fate) -> Document:
    checkpoint = fate.checkpoint
    return {
        "name": checkpoint.name,
        "prefix": checkpoint.prefix,
        "run": checkpoint.run,
        "step": checkpoint.step,
        "format": checkpoint.format.value,
        "bytes": checkpoint.nbytes,
        "health": checkpoint.health.value,
        "verdict": None if fate.word is None else fate.word.value,
        "fate": "go" if fate.goes else "keep",
        "why": [why.value for why in fate.why],
        "because": fate.because,
    }


def table(pruning: Pruning) -> RenderableType:
    """Show the deleted and the remaining checkpoints, with reasons, newest first."""
    plan = pruning.plan
    parts: list[RenderableType] = [_headline(pruning)]
    parts.append(line(f"{shown(plan.root)} ({plan.layout}); {_LOOKED[pruning.order.level]}", style="dim"))
    if plan.fates:
        parts += [line(), _FateTable(plan.fates, done=pruning.applied)]
    parts += [line(), *_elsewhere(pruning.elsewhere)] if pruning.elsewhere else []
    parts += [line(), *record_lines(pruning.fixes)] if pruning.fixes else []
    findings = (*pruning.refusals, *pruning.remarks)
    parts += [*grouped_findings(findings), *pointer(findings)]
    outcome = _outcome(pruning)
    parts += [line(), *outcome] if outcome else []
    return stack(*parts)


def _elsewhere(places: Sequence[Elsewhere]) -> Iterator[Text]:
    """Show the deletions on each machine, the largest share first."""
    hosts: dict[str | None, list[Elsewhere]] = {}
    for place in places:
        hosts.setdefault(place.host, []).append(place)
    order = sorted(hosts.items(), key=lambda item: (-sum(place.nbytes for place in item[1]), item[0] or ""))
    for host, seats in order[:MOST_HOSTS]:
        files = counted(sum(len(place.paths) for place in seats), "file")
        where = "on their machine" if host is None else f"on {shown(host)}"
        names = _named_few([*dict.fromkeys(place.checkpoint for place in seats)])
        yield line(f"{where}: {files}, {size(ByteCount(sum(place.nbytes for place in seats)))}: {names}")
    if len(order) > MOST_HOSTS:
        yield line(f"and {len(order) - MOST_HOSTS} more machines: --format json", style="dim")


def _named_few(names: Sequence[str]) -> str:
    """Name the first checkpoints, and the number of others."""
    more = len(names) - _MOST_NAMED
    return ", ".join(map(shown, names[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


MOST_HOSTS = 16
"""Maximum number of machines listed with the files to delete."""


def _headline(pruning: Pruning) -> Text:
    going, fates = len(pruning.plan.going), len(pruning.plan.fates)
    if not pruning.plan.good:
        text = "Nothing to delete: no checkpoint here is known to be good to resume from"
        return line(text, style="bold red")
    if not going:
        return line(f"Nothing to delete: {_stay(fates)}", style="bold green")
    summary = f"{going} of {fates} checkpoints, {size(pruning.freed)}"
    if pruning.refusals:
        return line(refused(f"{summary} may be deleted", apply=pruning.order.apply), style="bold red")
    action = "moved to the trash" if pruning.order.trash_days else "deleted"
    would = "" if pruning.applied else "would be "
    return line(f"{summary}: {would}{action}; {_stay(fates - going)}", style="bold green")


def _stay(number: int) -> str:
    return "1 stays" if number == 1 else f"{number} stay"


class _FateTable:
    """One line per checkpoint; on a narrow terminal only the important columns."""

    def __init__(self, fates: Sequence[Fate], *, done: bool) -> None:
        self._fates = fates
        self._go = "gone" if done else "drop"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrow = options.max_width < NARROW
        table = Table()
        table.add_column("", no_wrap=True)
        table.add_column("NAME")
        if not narrow:
            table.add_column("STEP", justify="right", no_wrap=True)
            table.add_column("SIZE", justify="right", no_wrap=True)
            table.add_column("VERDICT", no_wrap=True)
            table.add_column("HEALTH", no_wrap=True)
        table.add_column("WHY")
        for fate in self._fates:
            checkpoint = fate.checkpoint
            cell = line(self._go, style="yellow") if fate.goes else line("keep", style="green")
            step = "?" if checkpoint.step is None else str(checkpoint.step)
            verdict = "–" if fate.word is None else fate.word.value
            middle = () if narrow else (step, size(checkpoint.nbytes), verdict, checkpoint.health.value)
            table.add_row(cell, line(shown(checkpoint.name)), *middle, line(shown(fate.because)))
        yield table


def _undo(pruning: Pruning) -> str:
    """Return the command that restores the pruned checkpoints, by name if they are few."""
    names = [checkpoint.name for checkpoint in pruning.plan.going]
    named = join(names) if len(names) <= _MOST_NAMED else "NAME"
    return f"ckpttool trash restore {named} {quote(pruning.plan.root)}"


_MOST_NAMED = 3
"""Maximum number of checkpoints named in the suggested command; for more, `ckpttool trash list` shows the names."""


def _space(reached: Reached, *, done: bool) -> Text:
    """Show a space before and after the prune."""
    what, most = (reached.of, "at most ") if reached.aim == "max-size" else (f"free space of {reached.of}", "")
    before, after = (size(max(0, nbytes)) for nbytes in (reached.before, reached.after))
    change = "" if before == after else f", {'now' if done else 'would be'} {after}"
    return line(f"{what}: {before}{change} (requested: {most}{size(reached.nbytes)})")


def _never_deleted(pruning: Pruning) -> list[Text]:
    """Show how to remove damaged checkpoints, if nothing else can be deleted."""
    plan = pruning.plan
    damaged = [fate.checkpoint for fate in plan.fates if Why.NOT_WHOLE in fate.why]
    if plan.going or not plan.good or not damaged:
        return []
    root = quote(plan.root)
    verb, them = ("is", "it") if len(damaged) == 1 else ("are", "them")
    count = counted(len(damaged), "checkpoint")
    text = f"{count} {verb} not intact, and prune never deletes {them}. To check {them}:"
    return [
        line(text),
        line(f"ckpttool verify {root} {join(_selection(damaged))}", no_wrap=True),
        line(f"If nothing can repair {them} (ckpttool repair), delete the files yourself."),
    ]


def _selection(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return the options that select checkpoints, by name if they are few."""
    if len(checkpoints) > _MOST_NAMED:
        return ["--checkpoint", "all"]
    return [word for checkpoint in checkpoints for word in ("--checkpoint", checkpoint.name)]


def _outcome(pruning: Pruning) -> list[Text]:
    days = pruning.order.trash_days
    old = [entry.name for entry in pruning.trash if entry.goes]
    retained = [entry.name for entry in pruning.trash if not entry.goes]
    lines = [_space(reached, done=pruning.applied) for reached in pruning.reached]
    if old:
        verb = "deleted" if pruning.applied else "would be deleted"
        lines.append(line(f"{counted(len(old), 'earlier checkpoint')} in the trash: {verb}"))
    if retained:
        why = "not needed for the requested space" if pruning.reached else f"kept until {days:g} days old"
        lines.append(line(f"{counted(len(retained), 'earlier checkpoint')} in the trash: {why}"))
    if pruning.applied and pruning.plan.going and days:
        lines.append(line(f"Kept in the trash for {days:g} days. To undo:"))
        lines.append(line(_undo(pruning), no_wrap=True))
    if pruning.elsewhere:
        machine = "" if pruning.elsewhere[0].host is None else " with its machine"
        return [line(f"Plan only: nothing is deleted. --json lists each file{machine}.")]
    lines += _never_deleted(pruning)
    if not pruning.order.apply and not pruning.refusals and (pruning.plan.going or old):
        lines.append(line("Dry run: nothing was changed. Pass --apply to carry it out."))
    return lines
