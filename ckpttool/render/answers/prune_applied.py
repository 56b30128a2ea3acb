"""What one machine has of a plan of what may go, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.domain.prune_plan import PlanApplied
from ckpttool.domain.units import ByteCount, counted
from ckpttool.render.answers.prune import MOST_NAMED, named_few, record_lines, records_document
from ckpttool.render.escape import shown, size
from ckpttool.render.json import Document, finding_document
from ckpttool.render.shell import join, quote
from ckpttool.render.text import grouped_findings, line, pointer, stack

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def document(answer: PlanApplied) -> Document:
    """`ckpttool/prune-applied/1`, oldest checkpoint first."""
    plan = answer.plan
    return {
        "schema": "ckpttool/prune-applied/1",
        "root": answer.root,
        "layout": plan.layout,
        "host": answer.host,
        "applied": answer.applied,
        "plan": {"path": answer.path, "made": plan.made, "valid_until": plan.valid_until, "run": plan.run},
        "checkpoints": [
            {"name": save.name, "fate": save.fate.value, "files": save.files, "bytes": save.nbytes}
            for save in answer.saves
        ],
        "left_to": answer.left_to,
        "records": records_document(answer.fixes),
        "trash_days": answer.order.trash_days,
        "trash": [{"name": entry.name, "goes": entry.goes} for entry in answer.trash],
        "findings": [finding_document(finding) for finding in answer.refusals],
    }


def table(answer: PlanApplied) -> RenderableType:
    """Show in a few lines what this machine has: as many machines as there are say so at once."""
    plan = answer.plan
    of = line(f"{shown(answer.root)} ({plan.layout}); plan of {plan.made}", style="dim")
    parts: list[RenderableType] = [_headline(answer), of]
    parts += record_lines(answer.fixes)
    parts += [*grouped_findings(answer.refusals), *pointer(answer.refusals)]
    return stack(*parts, *_outcome(answer))


def _headline(answer: PlanApplied) -> Text:
    host = shown(answer.host)
    if answer.left_to is not None:
        return line(f"{host}: left to {shown(answer.left_to)}, which sees the same disk", style="bold green")
    if answer.refusals and not answer.saves:
        return line(f"{host}: refused; nothing was changed", style="bold red")
    if not answer.saves:
        return line(f"{host}: has nothing of the plan", style="bold green")
    if not answer.going:
        number = counted(len(answer.saves), "checkpoint")
        return line(f"{host}: nothing is left to do: {number} of the plan gone from here", style="bold green")
    files = counted(sum(save.files for save in answer.going), "file")
    nbytes = ByteCount(sum(save.nbytes for save in answer.going))
    what = f"{named_few([save.name for save in answer.going])}: {files}, {size(nbytes)}"
    if answer.refusals:
        return line(f"{host}: refused: {what}; nothing was changed", style="bold red")
    done = "moved to the trash" if answer.applied else "would be moved to the trash"
    return line(f"{host}: {what}: {done}", style="bold green")


def _outcome(answer: PlanApplied) -> list[Text]:
    old = sum(entry.goes for entry in answer.trash)
    lines = []
    if old and not answer.refusals:
        verb = "deleted" if answer.applied else "to be deleted"
        lines.append(line(f"In the trash, {old} from before: {verb}"))
    if answer.applied and answer.batches:
        names = [save.name for save in answer.going]
        named = join(names) if len(names) <= MOST_NAMED else "NAME"
        lines.append(line("To undo on this machine:"))
        lines.append(line(f"ckpttool trash restore {named} {quote(answer.root)}", no_wrap=True))
    if not answer.order.apply and not answer.refusals and (answer.batches or old):
        lines.append(line("Dry run: nothing was changed. With --apply it is done."))
    return lines
