"""The command `ckpttool scan`."""

from __future__ import annotations

import os
from time import time as clock
from typing import Annotated

import typer

from ckpttool.core.commands.answers import show_each, show_trees
from ckpttool.core.commands.options import OF_A_TREE, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import MoreDirs, from_here, say_tree
from ckpttool.core.domain.checkpoint import Listing
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.view import View
from ckpttool.core.errors import ExitCode, UnknownLayoutError

Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Show only the N newest checkpoints in the table; JSON lists all of them."),
]
Below = Annotated[
    bool,
    typer.Option(
        "--all", help="List every tree in and below DIR (default: the current folder).", rich_help_panel="Which tree"
    ),
]


@exits(
    {
        0: "The checkpoints were listed, and nothing is missing.",
        10: "A shard is missing, or a name or header shows damage.",
        **OF_A_TREE,
    }
)
@grouped
def scan(
    *,
    tree: TreeQuestion,
    more: MoreDirs = None,
    below: Below = False,
    look: View,
    limit: Limit = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """List checkpoints with their ranks, true step, size and health.

    Reads one header per checkpoint. The table lists the newest checkpoint first, JSON the oldest first.

    Example: ckpttool scan ./output/checkpoint
    """

    def ask(path: str | None) -> Listing:
        from ckpttool.core.verbs import scanning
        from ckpttool.core.verbs.scanning import with_note_of_others  # its help must not wait for this import

        question = from_here(tree, sizes=True, path=path)
        scanned = with_note_of_others(scanning.scan(question), question)
        say_tree(scanned, quiet=quiet, verbose=look.everything)
        return replace(scanned, now=clock(), limit=limit, view=look)

    if not below:
        raise typer.Exit(show_each(ask, (tree.path, *(more or ())), fmt))
    roots = (tree.path or os.curdir, *(more or ()))
    from ckpttool.core.commands import progress

    with progress.busy("searching for trees", quiet=quiet):
        from ckpttool.core.verbs import scanning

        paths = dict.fromkeys(path for root in roots for path in scanning.trees_below(root, layout=tree.layout))
    if not paths:
        raise UnknownLayoutError(f"no checkpoint tree was recognized below {' or '.join(roots)}")
    raise typer.Exit(show_trees(lambda path: _unless_bare(ask(path)), paths, fmt))


def _unless_bare(answer: Listing) -> Listing | None:
    """Return None for a folder that has only the names of a tree, such as the folder with the ranks' logs."""
    return answer if answer.inventory.checkpoints or answer.exit_code is not ExitCode.OK else None
