"""`ckpttool prune`."""

from __future__ import annotations

from typing import Annotated

import typer

import ckpttool
from ckpttool.core.commands import output, progress
from ckpttool.core.commands.answers import show_each
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, duration, exits, grouped
from ckpttool.core.commands.tree_options import ConfigPath, Grace, LevelName, MaxAge, MoreDirs, from_here
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.question import PREFIX, TreeQuestion
from ckpttool.core.domain.retention import PruneOrder, Pruning, RetentionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOptions:
    """What stays."""

    keep_last: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Keep the N newest good ones; nothing goes before.", rich_help_panel="What stays"
        ),
    ]
    keep_every: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="STEPS", help="Also the first at or after each multiple.", rich_help_panel="What stays"
        ),
    ] = None
    keep_healthy: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Also the N newest recorded as healthy.", rich_help_panel="What stays"),
    ] = 0
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also this one; repeat it.", rich_help_panel="What stays")
    ] = None
    drop_abandoned: Annotated[
        bool,
        typer.Option(
            "--drop-abandoned", help="Branches that the training left may go as well.", rich_help_panel="What stays"
        ),
    ] = False
    prefix: Annotated[str | None, PREFIX] = None

    def policy(self) -> RetentionPolicy:
        """Ask the library."""
        return RetentionPolicy(
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            keep_healthy=self.keep_healthy,
            keep=tuple(self.keep or ()),
            drop_abandoned=self.drop_abandoned,
            prefix=self.prefix,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """How to look, and what to do."""

    apply: Annotated[
        bool, typer.Option("--apply", help="Do it; without it nothing is changed.", rich_help_panel="What stays")
    ] = False
    level: Annotated[
        LevelName | None,
        typer.Option(
            help="How hard to look at what stays; default: compare every checksum there is, else headers.",
            rich_help_panel="Evidence",
        ),
    ] = None
    grace: Grace = 300.0
    wait: Annotated[
        float,
        typer.Option(
            parser=duration("m"),
            metavar="TIME",
            show_default=False,
            help="Wait so long for a save that is under way (10m, or minutes).",
            rich_help_panel="What stays",
        ),
    ] = 0.0
    trash_days: Annotated[
        float,
        typer.Option(
            parser=duration("d"),
            metavar="TIME",
            show_default=False,
            help="Keep what went in DIR/.ckpttool/trash for so long (7d, or days).",
            rich_help_panel="What stays",
        ),
    ] = 0.0
    max_age: MaxAge = 24.0

    def order(self) -> PruneOrder:
        """Ask the library."""
        return PruneOrder(
            apply=self.apply,
            level=None if self.level is None else self.level.level,
            grace=self.grace,
            wait=self.wait * 60,
            trash_days=self.trash_days,
            max_age=self.max_age * 3600,
        )


@exits(
    {
        0: "The plan stands, done or (without --apply) not.",
        10: "Refused: damage is in the way.",
        11: "No checkpoint is good, so nothing goes.",
        13: OF_WRITING[13],
        **OF_A_TREE,
        14: "Refused: somebody is saving, or something could not be read.",
        16: OF_WRITING[16],
    }
)
@grouped
def prune(
    *,
    tree: TreeQuestion,
    more: MoreDirs = None,
    keep: KeepOptions,
    order: OrderOptions,
    config: ConfigPath = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Let replaced checkpoints go; a dry run unless --apply.

    What newer good ones replace goes, on all ranks or none. What is damaged, incomplete or unknown never goes, and
    counts for nothing. Ranks, names and meta.json stay in step.

    Example: ckpttool prune ./output/checkpoint --keep-last 3 --keep-every 10000
    """
    policy, prune_order = keep.policy(), order.order()

    def ask(path: str | None) -> Pruning:
        question = from_here(tree, config=config, path=path)
        with progress.watched(quiet=quiet):
            pruning = ckpttool.prune(question, policy, prune_order, waiting=None if quiet else _say)
        output.looking_at(pruning.resolved_from, quiet=quiet)
        return pruning

    raise typer.Exit(show_each(ask, (tree.path, *(more or ())), fmt))


def _say(sign: Finding) -> None:
    output.note(f"waiting: {sign.path}: {sign.message}")
