"""`ckpttool heal`."""

from __future__ import annotations

from typing import Annotated

import typer

import ckpttool
from ckpttool.core.commands import output, progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import Grace, OneName, from_here, one_name
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.units import Rank

From = Annotated[
    int | None,
    typer.Option(
        "--from",
        min=0,
        metavar="RANK",
        help="Rebuild from this rank's; default: what most speaks for.",
        rich_help_panel="Which checkpoint",
    ),
]
One = Annotated[
    str | None,
    typer.Option(
        "--tensor",
        metavar="NAME",
        help="Replace this tensor alone, where the rest is whole.",
        rich_help_panel="Which checkpoint",
    ),
]
Apply = Annotated[
    bool, typer.Option("--apply", help="Do it; without it nothing is changed.", rich_help_panel="What stays")
]


@exits(
    {
        0: "Nothing is wrong, or all of it can be rebuilt.",
        10: "Something is wrong that no copy can mend.",
        11: "Refused: nothing proves a copy, or it is in doubt itself. Or there is no checkpoint.",
        **OF_A_TREE,
        14: "Refused: somebody is saving, or something could not be read.",
        **OF_WRITING,
    }
)
@grouped
def heal(
    *,
    tree: TreeQuestion,
    checkpoint: OneName = None,
    donor: From = None,
    tensor: One = None,
    apply: Apply = False,
    grace: Grace = 300.0,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Rebuild a lost or damaged shard from a proven copy, with --apply.

    Data-parallel ranks save the same. A shard is a copy where the trainer's record of the layout says so, where it
    holds what was sealed of the lost one, or where two other checkpoints of the run show both ranks equal in every
    tensor; and only one that is beyond doubt itself is taken. What was damaged is kept in the trash.

    Example: ckpttool heal ./output/checkpoint --checkpoint 20_2
    """
    order = ckpttool.HealOrder(
        checkpoint=one_name(checkpoint),
        donor=None if donor is None else Rank(donor),
        tensor=tensor,
        apply=apply,
        grace=grace,
    )
    with progress.watched(quiet=quiet):
        healing = ckpttool.heal(from_here(tree), order)
    output.looking_at(healing.resolved_from, quiet=quiet)
    raise typer.Exit(show(healing, fmt))
