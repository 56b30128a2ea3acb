"""The three commands of `ckpttool trash`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from ckpttool.core.commands import output
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.helped import Command, command_group
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, duration, exits, grouped
from ckpttool.core.commands.tree_options import Grace, from_here
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.retention import Trash
from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.core.render.shell import join

app = command_group("trash")


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the checkpoint, or of its folder in the trash.", rich_help_panel="Arguments"
    ),
]


def _words(ctx: typer.Context, more: list[str] | None) -> list[str]:
    """Return the arguments after NAME, followed by DIR from a variable or a file if none was typed."""
    settings: Any = ctx.default_map
    path, arguments = ctx.params["path"], [*(more or ())]
    if path is not None and "path" not in settings.places:
        arguments = [path, *arguments]  # or another name instead of DIR
        path = None if _is_place(ctx.params["name"]) or _is_place(arguments[-1]) else settings.get("path")
    ctx.params["path"] = None
    # The argument is a path, not a name, whatever its form; a Path would drop the dot.
    return arguments if path is None else [*arguments, os.path.join(os.curdir, path)]


MoreNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME...",
        callback=_words,
        help="More names; DIR may come before or after the names.",
        rich_help_panel="Arguments",
    ),
]
OlderThan = Annotated[
    float | None,
    typer.Option(
        parser=duration("d", to="s"),
        metavar="TIME",
        help="Use only checkpoints that were deleted at least this long ago: 7d, 12h.",
        rich_help_panel="What stays",
    ),
]
Apply = Annotated[
    bool,
    typer.Option(
        "--apply", help="Make the changes; without this option, nothing is changed.", rich_help_panel="What stays"
    ),
]


@app.callback()
@exits(
    {
        0: "The command succeeded; `empty` deletes nothing without --apply.",
        10: "The checkpoints were restored, but a header shows damage, or a part is missing.",
        **OF_A_TREE,
        14: "The change was refused: a save is in progress, or a file could not be read.",
        **OF_WRITING,
    }
)
def trash() -> None:
    """List, restore or delete what prune moved to the trash.

    Example: ckpttool trash list ./output/checkpoint
    """


@app.command("list", cls=Command)
@exits(
    {
        0: "The trash was listed.",
        **OF_A_TREE,
        14: "An earlier change of the tree was interrupted, or a file could not be read.",
    }
)
@grouped
def show_list(
    *, tree: TreeQuestion, older_than: OlderThan = None, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False
) -> None:
    """List the trash: name, step, size, and time of deletion; with --older-than also the expiry.

    Example: ckpttool trash list ./output/checkpoint --older-than 7d
    """
    from ckpttool.retention import verbs_trash

    raise typer.Exit(_show(verbs_trash.trash(from_here(tree), older_than=older_than), fmt, quiet=quiet))


@app.command(cls=Command)
@exits(
    {
        0: "The checkpoints were restored, and their headers show no damage.",
        10: "The checkpoints were restored, but a header shows damage, or a part is missing.",
        **OF_A_TREE,
        14: "The change was refused: a save is in progress, or a file could not be read.",
        **OF_WRITING,
    }
)
@grouped
def restore(
    *,
    name: Name,
    tree: TreeQuestion,
    more: MoreNames = None,
    grace: Grace = 300.0,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Restore checkpoints from the trash, on all ranks or none. Overwrites nothing.

    An interrupted restore is completed by the next restore, prune --apply or repair pointer --apply.

    Example: ckpttool trash restore 20_2 ./output/checkpoint
    """
    path, names = _sorted_out([name, *(more or ())])
    if path is None and os.path.isdir(name):
        raise UsageError(
            f"{name} is a folder: also name the checkpoint, as listed by {join(['ckpttool', 'trash', 'list', name])}"
        )
    from ckpttool.retention import verbs_trash

    raise typer.Exit(
        _show(verbs_trash.restore(from_here(replace(tree, path=path)), *names, grace=grace), fmt, quiet=quiet)
    )


def _sorted_out(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Distinguish DIR from the names around it: DIR exists, or has the form of a path."""
    for place in (-1, 0):
        if len(arguments) > 1 and _is_place(arguments[place]):
            return arguments.pop(place), arguments
    return None, arguments


def _is_place(argument: str) -> bool:
    return os.sep in argument or os.path.lexists(argument)


@app.command(cls=Command)
@exits(
    {
        0: "The checkpoints were deleted or, without --apply, would be deleted.",
        **OF_A_TREE,
        14: "An earlier change of the tree was interrupted, or a file could not be read.",
        **OF_WRITING,
    }
)
@grouped
def empty(
    *,
    tree: TreeQuestion,
    older_than: OlderThan = None,
    apply: Apply = False,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Delete the trash permanently (dry run unless --apply).

    Example: ckpttool trash empty ./output/checkpoint --older-than 7d --apply
    """
    from ckpttool.retention import verbs_trash

    answer = verbs_trash.empty_trash(from_here(tree), older_than=older_than or 0.0, apply=apply)
    raise typer.Exit(_show(answer, fmt, quiet=quiet))


def _show(trash: Trash, fmt: Format, *, quiet: bool) -> ExitCode:
    output.looking_at(trash.resolved_from, quiet=quiet)
    return show(trash, fmt)
