"""`ckpttool scan`."""

from __future__ import annotations

import typer

from ckpttool import api
from ckpttool.cli import output
from ckpttool.cli.answers import INVENTORY, show
from ckpttool.cli.grouped import grouped
from ckpttool.cli.options import Format, FormatOpt, Quiet, TreeOptions


@grouped
def scan(*, tree: TreeOptions, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Show which checkpoints are there, on which ranks, at which true step.

    Opens one header for each save, no further. Newest first in the table, oldest first in JSON.

    Example: ckpttool scan ./output/checkpoint
    """
    found = api.scan(tree.question(sizes=True))
    output.looking_at(found.resolved_from, quiet=quiet)
    raise typer.Exit(show(INVENTORY, found.inventory, fmt))
