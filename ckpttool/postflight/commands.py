"""`ckpttool postflight`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import progress, reports
from ckpttool.core.commands.options import OF_A_TREE, Quiet, Verbose, exits, grouped
from ckpttool.core.commands.reports import ReportOptions
from ckpttool.core.commands.tree_options import ConfigPath, from_here
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.question import DEFAULT_DIR, LAYOUT, TreeQuestion
from ckpttool.core.domain.view import View
from ckpttool.postflight.model.questions import PostflightQuestion

Path = Annotated[
    str | None,
    Option(
        "[DIR|PLAN.json|-]",
        "Checkpoint folder, or the JSON of `ckpttool resolve`; - reads it from stdin.",
        "Which tree",
        shown=DEFAULT_DIR,
    ),
]


@exits(
    {
        0: "The run resumed as planned.",
        10: "The run did not resume as planned.",
        11: "The plan chooses no checkpoint.",
        **OF_A_TREE,
        14: "The logs do not show it, not yet, or could not be read.",
    }
)
@grouped
def postflight(
    *,
    path: Path = None,
    question: PostflightQuestion,
    layout: Annotated[str | None, LAYOUT] = None,
    config: ConfigPath = None,
    report: ReportOptions,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Check by the logs of both runs whether a resume worked.

    A run that stopped at step 530 and resumes from step 500 repeats steps 501 to 530. postflight compares them: step
    counter, data, weights, optimizer and learning rate.

    Example: ckpttool postflight --before first.log --after second.log
    """
    from ckpttool.postflight import verbs

    tree = from_here(TreeQuestion(path=path, layout=layout), config=config)
    question = replace(question, allowed=report.allowed(), view=View(everything=verbose))
    inputs = report.existing(config, advice="give the training config")
    reports.assert_reports_replaceable(report.files(), inputs=[*inputs, *question.before, *question.after])
    with progress.busy("reading the logs", quiet=quiet):
        answer = verbs.postflight(tree, question)
    raise typer.Exit(reports.show(answer, report))
