"""The answer of `verify --dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.forecast import Forecast
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import Level
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import Table, line, stack

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(answer: Forecast) -> Document:
    """Return `ckpttool/forecast/1`, the amount that `verify` would read, oldest checkpoint first."""
    return {
        "schema": "ckpttool/forecast/1",
        "root": answer.inventory.root,
        "level": answer.level.word,
        "bytes": sum(checkpoint.nbytes for checkpoint in answer.checkpoints),
        "requests": _requests(answer),
        "tasks": sum(checkpoint.tasks for checkpoint in answer.checkpoints),
        "checkpoints": [
            {
                "name": checkpoint.name,
                "asked": checkpoint.asked,
                "shards": checkpoint.shards,
                "tasks": checkpoint.tasks,
                "bytes": checkpoint.nbytes,
                "requests": checkpoint.requests,
            }
            for checkpoint in reversed(answer.checkpoints)
        ],
    }


def table(answer: Forecast) -> RenderableType:
    """Show the total, then one line per checkpoint."""
    if not answer.checkpoints:
        return stack(line(f"No checkpoint in {shown(answer.inventory.root)}", style="bold red"))
    requests, tasks = _requests(answer), sum(checkpoint.tasks for checkpoint in answer.checkpoints)
    requests_text = "" if requests is None else f" by {counted(requests, 'request')} or more"
    headline = (
        f"Would read about {size(sum(checkpoint.nbytes for checkpoint in answer.checkpoints))}{requests_text}: "
        f"{counted(tasks, 'task')}"
    )
    rows = Table()
    rows.add_column("NAME")
    for header in ("SHARDS", "TASKS", "READ", *([] if requests is None else ["REQUESTS"])):
        rows.add_column(header, justify="right", no_wrap=True)
    for checkpoint in answer.checkpoints:
        cells = [str(checkpoint.shards), str(checkpoint.tasks), size(checkpoint.nbytes)]
        name = line(shown(checkpoint.name) + ("" if checkpoint.asked else "  (to compare with)"))
        rows.add_row(name, *cells, *([] if checkpoint.requests is None else [str(checkpoint.requests)]))
    return stack(line(headline, style="bold"), line(_LOOKS[answer.level], style="dim"), "", rows)


_LOOKS = {
    Level.STRUCTURE: "read only the same data as scan; 64 KiB are assumed per header",
    Level.CHECKSUM: "read only the same data as scan; shards in the ledger are not read again",
    Level.NUMERICS: "read only the same data as scan",
}


def _requests(answer: Forecast) -> int | None:
    requests = [checkpoint.requests for checkpoint in answer.checkpoints if checkpoint.requests is not None]
    return sum(requests) if requests else None
