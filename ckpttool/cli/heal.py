"""`ckpttool heal`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import output, progress
from ckpttool.cli.answers import HEAL, show
from ckpttool.cli.grouped import grouped
from ckpttool.cli.options import Format, FormatOpt, OneName, Quiet, TreeOptions, one_name
from ckpttool.domain.units import Rank

From = Annotated[
    int | None,
    typer.Option("--from", min=0, metavar="RANK", help="Rebuild from this rank's; default: what most speaks for."),
]
One = Annotated[
    str | None, typer.Option("--tensor", metavar="NAME", help="Replace this tensor alone, where the rest is whole.")
]


@grouped
def heal(
    *,
    tree: TreeOptions,
    checkpoint: OneName = None,
    donor: From = None,
    tensor: One = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Find a proven copy of a missing or damaged shard.

    Data-parallel ranks save the same. A shard is a copy where the trainer's record of the layout says so, or where two
    other checkpoints of the run show both ranks equal in every tensor; and only one that is beyond doubt itself is
    taken.

    Example: ckpttool heal ./output/checkpoint --checkpoint 20_2
    """
    order = api.HealOrder(checkpoint=one_name(checkpoint), donor=None if donor is None else Rank(donor), tensor=tensor)
    with progress.watched(quiet=quiet):
        healing = api.heal(tree.question(), order)
    output.looking_at(healing.resolved_from, quiet=quiet)
    raise typer.Exit(show(HEAL, healing, fmt))
