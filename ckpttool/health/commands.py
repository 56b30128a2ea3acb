"""`ckpttool health`."""

from __future__ import annotations

from typing import Annotated

import typer

import ckpttool
from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show_each
from ckpttool.core.commands.options import OF_A_TREE, Format, FormatOpt, Quiet, Verbose, exits, finite, grouped
from ckpttool.core.commands.tree_options import ConfigPath, MoreDirs, from_here, say_tree
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.question import COLUMNS, LOG, TreeQuestion
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import UsageError
from ckpttool.health.model.answers import HealthAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """How to judge."""

    threshold: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            min=0,
            help="Embedding local norm (sum of squares) from which one is unhealthy.",
            rich_help_panel="Evidence",
        ),
    ] = None
    log: Annotated[tuple[str, ...], LOG] = ()
    columns: Annotated[str | None, COLUMNS] = None
    from_weights: Annotated[
        bool,
        typer.Option(
            "--from-weights",
            help="Read every shard: NaN, infinity, norms of the embedding.",
            rich_help_panel="Evidence",
        ),
    ] = False
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Bring health_ckpts.json in line with the log; a .bak stays.", rich_help_panel="What stays"
        ),
    ] = False

    def question(self, tree: ckpttool.TreeQuestion) -> ckpttool.HealthQuestion:
        """Ask the library."""
        return ckpttool.HealthQuestion(
            threshold=self.threshold,
            logs=ckpttool.LogQuestion(patterns=self.log, columns=self.columns),
            health_file=tree.health_file,
            pipeline_stages=tree.config.pipeline_stages if tree.config is not None else None,
            write=self.write,
        )


@exits(
    {
        0: "The newest checkpoint is healthy.",
        10: "The newest is unhealthy, or its record is wrong.",
        11: "There is no checkpoint.",
        **OF_A_TREE,
        14: "Its health is unknown, or something could not be read.",
    }
)
@grouped
def health(
    *,
    tree: TreeQuestion,
    more: MoreDirs = None,
    judge: JudgeOptions,
    config: ConfigPath = None,
    fmt: FormatOpt = Format.TABLE,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Tell which checkpoints are healthy, by norms that a log shows.

    Judges by the embedding norm at each save. Finds logs and health_ckpts.json by itself.

    Example: ckpttool health ./output --threshold 270
    """
    if more and (judge.log or tree.health_file is not None):
        raise UsageError("--log and --health-file tell of one training: give one DIR")

    def ask(path: str | None) -> HealthAnswer:
        question = from_here(tree, config=config, sizes=judge.from_weights, path=path)
        scanned = ckpttool.scan(question)
        say_tree(scanned, quiet=quiet, verbose=verbose)
        verdicts = weighed(scanned, quiet=quiet) if judge.from_weights else ()
        with progress.busy("reading the logs", quiet=quiet):
            return ckpttool.health(scanned, judge.question(question), verdicts)

    raise typer.Exit(show_each(ask, (tree.path, *(more or ())), fmt))


def weighed(tree: ckpttool.Tree, *, quiet: bool) -> list[Verdict]:
    """Read every element of every shard, with a bar."""
    question = ckpttool.CheckQuestion(level=Level.NUMERICS, name="all" if tree.focus is None else None, jump=0)
    with progress.watched(quiet=quiet):
        return [event for event in ckpttool.verify(tree, question) if isinstance(event, Verdict)]
