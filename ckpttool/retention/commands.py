"""The command `ckpttool prune`."""

from __future__ import annotations

import typer

from ckpttool.core.commands import output, progress
from ckpttool.core.commands.answers import show_each
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import ConfigPath, MoreDirs, from_here
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.retention import Aim, PruneOrder, Pruning, RetentionPolicy
from ckpttool.core.errors import CkptToolError


@exits(
    {
        0: "The deletion was planned or, with --apply, carried out.",
        10: "The deletion was refused because of damage, or the requested space is not reached.",
        11: "No checkpoint is good, so nothing was deleted.",
        13: OF_WRITING[13],
        **OF_A_TREE,
        14: "The change was refused: a save is in progress, or a file could not be read.",
        16: OF_WRITING[16],
    }
)
@grouped
def prune(
    *,
    tree: TreeQuestion,
    more: MoreDirs = None,
    policy: RetentionPolicy,
    order: PruneOrder,
    aim: Aim,
    config: ConfigPath = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Delete superseded checkpoints (dry run unless --apply).

    Deletes checkpoints superseded by newer good ones, on all ranks or none. Never deletes damaged or incomplete
    checkpoints or those of unknown state, and never counts them as newer good ones. Keeps ranks, names and
    meta.json consistent.

    Example: ckpttool prune ./output/checkpoint --keep-last 3 --keep-every 10000
    """
    paths = (tree.path, *(more or ()))
    waiting = None if quiet else _say
    together: dict[str | None, Pruning | CkptToolError] = {}
    if aim.is_set:
        questions = [from_here(tree, config=config, path=path) for path in paths]
        with progress.watched(quiet=quiet):
            from ckpttool.retention.verbs_room import prune_to

            together = dict(zip(paths, prune_to(questions, policy, order, aim=aim, waiting=waiting), strict=True))

    def ask(path: str | None) -> Pruning:
        pruning = together.get(path)
        if isinstance(pruning, CkptToolError):
            raise pruning
        if pruning is None:
            question = from_here(tree, config=config, path=path)
            with progress.watched(quiet=quiet):
                from ckpttool.retention import verbs

                pruning = verbs.prune(question, policy, order, waiting=waiting)
        output.looking_at(pruning.resolved_from, quiet=quiet)
        return pruning

    raise typer.Exit(show_each(ask, paths, fmt))


def _say(sign: Finding) -> None:
    output.note(f"waiting: {sign.path}: {sign.message}")
