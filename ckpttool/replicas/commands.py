"""The command `ckpttool repair shards`."""

from __future__ import annotations

import typer

from ckpttool.core.commands import output, progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import from_here
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.replicas.model import HealOrder


@exits(
    {
        0: "No problem was found, or everything can be rebuilt.",
        10: "There is a problem that no copy can repair.",
        11: "The repair was refused: no copy is proven, the copy itself is suspect, or there is no checkpoint.",
        **OF_A_TREE,
        14: "The change was refused: a save is in progress, or a file could not be read.",
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
    """Rebuild lost or damaged shards from verified copies.

    Data-parallel ranks save the same tensors. A shard is a proven copy if the trainer's layout record says so, if
    it matches the seal of the lost shard, or if both ranks are equal in every tensor of two other checkpoints of
    the run. Uses only intact copies. Moves the damaged file to the trash.

    Example: ckpttool repair shards ./output/checkpoint --checkpoint 20_2
    """
    with progress.watched(quiet=quiet):
        from ckpttool.replicas import verbs

        healing = verbs.heal(from_here(tree), order)
    output.looking_at(healing.resolved_from, quiet=quiet)
    raise typer.Exit(show(healing, fmt))
