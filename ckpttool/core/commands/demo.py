"""The command `ckpttool demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import Format, FormatOpt, always_writes, exits, grouped

Folder = Annotated[
    str,
    typer.Argument(metavar="[FOLDER]", help="A new or empty folder.", rich_help_panel="Arguments"),
]


@exits({0: "The tree was written."})
@grouped
@always_writes
def demo(folder: Folder = "ckpttool-demo", fmt: FormatOpt = Format.TABLE) -> None:
    """Write a small damaged tree to try the commands on.

    The tree is from a real run with 4 ranks; its newest save is truncated on two of them. Includes the config and
    commands to try. Overwrites nothing.

    Example: ckpttool demo
    """
    from ckpttool.core.verbs import trying

    raise typer.Exit(show(trying.demo(folder), fmt))
