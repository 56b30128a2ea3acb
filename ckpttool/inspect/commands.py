"""The command `ckpttool inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import OneName, Patterns, RowOptions, What, one_name
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import DEFAULT_DIR, LAYOUT

Tree = Annotated[
    str | None,
    typer.Option(
        "--tree",
        metavar="DIR",
        show_default=DEFAULT_DIR,
        help="Tree in which checkpoint names are looked up.",
        rich_help_panel="Which tree",
    ),
]


@exits(
    {
        0: "The contents were shown.",
        10: "The file or checkpoint is damaged; with --stats: it contains NaN or infinity.",
        11: "There is no checkpoint to inspect.",
        **OF_A_TREE,
    }
)
@grouped
def inspect(
    *,
    what: What = None,
    tree: Tree = None,
    checkpoint: OneName = None,
    tensor: Patterns = None,
    stats: Annotated[
        bool,
        typer.Option("--stats", help="Also read the data, and show its norm, extremes, NaN, infinities and zeros."),
    ] = False,
    rows: RowOptions,
    layout: Annotated[str | None, LAYOUT] = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Show the tensors and scalars of a shard or a checkpoint.

    Also shows the program that wrote the file, and the checksums that `verify` compares. Needs neither the trainer
    nor torch, and never executes code from a file. Shows a damaged file as far as it can be read.

    Example: ckpttool inspect model.safetensors --tensor '*norm*' --stats
    """
    with progress.watched(quiet=quiet):
        from ckpttool.inspect import verbs

        answer = verbs.inspect(
            what, tree=tree, checkpoint=one_name(checkpoint), tensors=tuple(tensor or ()), stats=stats, layout=layout
        )
    raise typer.Exit(show(replace(answer, most_rows=rows.most), fmt))
