"""`ckpttool scan`."""

from __future__ import annotations

from time import time as clock
from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli.answers import INVENTORY, show
from ckpttool.cli.grouped import grouped
from ckpttool.cli.options import Format, FormatOpt, Quiet, TreeOptions, ViewOptions, say_tree
from ckpttool.domain.checkpoint import Listing

Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest N in the table; JSON has all.")]


@grouped
def scan(
    *,
    tree: TreeOptions,
    look: ViewOptions,
    limit: Limit = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """List the checkpoints: on which ranks, at which true step.

    Opens one header for each save, no further. Newest first in the table, oldest first in JSON.

    Example: ckpttool scan ./output/checkpoint
    """
    found = api.scan(tree.question(sizes=True))
    say_tree(found, quiet=quiet, verbose=look.verbose)
    answer = Listing(inventory=found.inventory, now=clock(), limit=limit, view=look.view())
    raise typer.Exit(show(INVENTORY, answer, fmt))
