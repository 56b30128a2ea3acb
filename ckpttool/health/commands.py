"""The command `ckpttool health`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show_each
from ckpttool.core.commands.options import OF_A_TREE, DryRun, Format, FormatOpt, Quiet, Verbose, exits, grouped
from ckpttool.core.commands.tree_options import ConfigPath, MoreDirs, from_here, say_tree
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import UsageError
from ckpttool.health.model.answers import HealthAnswer
from ckpttool.health.model.questions import HealthQuestion

if TYPE_CHECKING:
    from ckpttool.core.verbs.scanning import Tree


@exits(
    {
        0: "The newest checkpoint is healthy.",
        10: "The newest checkpoint is unhealthy, its health record is wrong, or a file is damaged.",
        11: "There is no checkpoint.",
        **OF_A_TREE,
        14: "The health of the newest checkpoint is unknown, or a file could not be read.",
    }
)
@grouped
def health(
    *,
    tree: TreeQuestion,
    more: MoreDirs = None,
    judge: HealthQuestion,
    from_weights: Annotated[
        bool,
        Option(
            "--from-weights",
            "Read every shard to find NaN and infinite values, and to compute embedding norms.",
            "Evidence",
        ),
    ] = False,
    config: ConfigPath = None,
    fmt: FormatOpt = Format.TABLE,
    verbose: Verbose = False,
    quiet: Quiet = False,
    dry_run: DryRun = False,
) -> None:
    """Show which checkpoints are healthy, based on the logged norms.

    Uses the embedding norm at each save. Finds logs and health_ckpts.json automatically.

    Example: ckpttool health ./output --threshold 270
    """
    if more and (judge.logs.patterns or tree.health_file is not None):
        raise UsageError("--log and --health-file apply to a single run: give one DIR")

    def ask(path: str | None) -> HealthAnswer:
        from ckpttool.core.verbs import scanning
        from ckpttool.health.verbs import health

        question = from_here(tree, config=config, sizes=from_weights, path=path)
        scanned = scanning.scan(question)
        say_tree(scanned, quiet=quiet, verbose=verbose)
        stages = None if question.config is None else question.config.pipeline_stages
        verdicts = weighed(scanned, quiet=quiet) if from_weights else ()
        with progress.busy("reading the logs", quiet=quiet):
            judgement = replace(judge, health_file=tree.health_file, pipeline_stages=stages)
            if dry_run and judge.write:
                health.assert_writable(scanned, judgement)
                judgement = replace(judgement, write=False)
            return health.health(scanned, judgement, verdicts)

    raise typer.Exit(show_each(ask, (tree.path, *(more or ())), fmt))


def weighed(tree: Tree, *, quiet: bool) -> list[Verdict]:
    """Read every element of every shard, with a progress bar."""
    from ckpttool.core.verbs import verifying

    question = CheckQuestion(level=Level.NUMERICS, name="all" if tree.focus is None else None, jump=0)
    with progress.watched(quiet=quiet):
        return [event for event in verifying.verify(tree, question) if isinstance(event, Verdict)]
