"""`ckpttool heal`."""

from __future__ import annotations

import typer

import ckpttool
from ckpttool.core.commands import output, progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import from_here
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.replicas.model import HealOrder


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
    order: HealOrder,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Rebuild lost or damaged shards from proven copies.

    Data-parallel ranks save the same. A shard is a copy where the trainer's record of the layout says so, where it
    holds what was sealed of the lost one, or where two other checkpoints of the run show both ranks equal in every
    tensor; and only one that is beyond doubt itself is taken. What was damaged is kept in the trash.

    Example: ckpttool heal ./output/checkpoint --checkpoint 20_2
    """
    with progress.watched(quiet=quiet):
        healing = ckpttool.heal(from_here(tree), order)
    output.looking_at(healing.resolved_from, quiet=quiet)
    raise typer.Exit(show(healing, fmt))
