"""The command `ckpttool diff`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import LevelName, OneName, Patterns, RowOptions, one_name
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import DEFAULT_DIR, LAYOUT

_WHAT = "shard of any format, a tree (its newest intact checkpoint), DIR:NAME, or a checkpoint's name."


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOptions:
    """The two sides to compare."""

    a: Annotated[str, typer.Argument(metavar="A", help=f"A {_WHAT}", rich_help_panel="Which tree")]
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help="What to compare A with: a shard, tree or checkpoint, of the same kind as A.",
            rich_help_panel="Which tree",
        ),
    ]
    tree: Annotated[
        str | None,
        typer.Option(
            "--tree",
            metavar="DIR",
            show_default=DEFAULT_DIR,
            help="Tree in which checkpoint names are looked up.",
            rich_help_panel="Which tree",
        ),
    ] = None
    checkpoint: OneName = None
    layout: Annotated[str | None, LAYOUT] = None


@exits(
    {
        0: "The comparison is complete, whether or not anything differs.",
        10: "A or B is damaged or, with --exit-code, a tensor differs.",
        11: "There is no checkpoint to compare.",
        **OF_A_TREE,
    }
)
@grouped
def diff(
    *,
    sides: SideOptions,
    level: Annotated[
        LevelName | None,
        typer.Option(
            help="Compare headers, every bit, or every element.",
            show_default="structure; with --exit-code checksum",
            rich_help_panel="Evidence",
        ),
    ] = None,
    tensor: Patterns = None,
    rows: RowOptions,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 10 if a tensor differs.")] = False,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Compare two shards or checkpoints, down to their values.

    Shows tensors that were added, removed, or changed in type or shape, and scalars that differ. With --level
    numerics, also shows how far values moved (relative L2, largest element, angle), largest change first.

    Example: ckpttool diff 10_2 15_2 --tree output/checkpoint --level numerics
    """
    level_used = level or (LevelName.CHECKSUM if exit_code else LevelName.STRUCTURE)
    with progress.watched(quiet=quiet):
        from ckpttool.inspect import verbs_diff

        answer = verbs_diff.diff(
            sides.a, sides.b, tree=sides.tree, checkpoint=one_name(sides.checkpoint), level=level_used.level,
            tensors=tuple(tensor or ()), layout=sides.layout,
        )  # fmt: skip
    raise typer.Exit(show(replace(answer, differing_is_damage=exit_code, most_rows=rows.most), fmt))
