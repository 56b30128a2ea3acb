"""The command `ckpttool repair pointer`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import ConfigPath, Grace, from_here, one_name
from ckpttool.core.domain.question import PREFIX, ResumeQuestion, TreeQuestion

Name = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME",
        autocompletion=completing.checkpoints,
        help="Point to this checkpoint instead of the newest intact one.",
        rich_help_panel="Which checkpoint",
    ),
]
Apply = Annotated[
    bool,
    typer.Option(
        "--apply", help="Write the records; without this option, nothing is changed.", rich_help_panel="What stays"
    ),
]


@exits(
    {
        0: "The records are correct, or would be after --apply.",
        10: "The change was refused because of damage.",
        11: "There is no intact checkpoint to point to.",
        **OF_A_TREE,
        **OF_WRITING,
    }
)
@grouped
def repair_meta(
    *,
    tree: TreeQuestion,
    config: ConfigPath = None,
    checkpoint: Name = None,
    prefix: Annotated[str | None, PREFIX] = None,
    apply: Apply = False,
    grace: Grace = 300.0,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Point meta.json or the tracker at the newest intact checkpoint.

    Rewrites a missing, damaged or stale record from the shards. Dry run unless --apply.

    Example: ckpttool repair pointer ./output/checkpoint
    """
    choice = ResumeQuestion(name=one_name(checkpoint), prefix=prefix, ignore_health=True, skips_marked=True)
    from ckpttool.retention import verbs_repair

    repair = verbs_repair.repair_meta(from_here(tree, config=config), choice, grace=grace, apply=apply)
    output.looking_at(repair.resolved_from, quiet=quiet)
    raise typer.Exit(show(repair, fmt))
