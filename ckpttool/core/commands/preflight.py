"""The command `ckpttool preflight`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import output, reports
from ckpttool.core.commands.options import OF_A_TREE, Quiet, exits, grouped
from ckpttool.core.commands.reports import ReportOptions
from ckpttool.core.commands.tree_options import EngineOptions, from_here
from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.preflight import PreflightQuestion
from ckpttool.core.domain.question import ResumeQuestion, StartQuestion, TreeQuestion
from ckpttool.core.domain.view import View

Base = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="BASE.yaml",
        help="Training config of the launch, if the trainer uses one.",
        rich_help_panel="Launch",
    ),
]
Devices = Annotated[
    int | None, typer.Option(min=1, help="Total number of devices to start on all nodes.", rich_help_panel="Launch")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Answer no-go if a newer checkpoint was skipped.", rich_help_panel="Which checkpoint"
    ),
]


@exits(
    {
        0: "The answer is go.",
        10: "The answer is no-go.",
        11: "There is no checkpoint to resume from: no-go.",
        **OF_A_TREE,
    }
)
@grouped
def preflight(
    *,
    tree: TreeQuestion,
    choice: ResumeQuestion,
    start: StartQuestion,
    data: DataQuestion,
    look: View,
    engine: EngineOptions,
    report: ReportOptions,
    config: Base = None,
    devices: Devices = None,
    strict: Strict = False,
    quiet: Quiet = False,
) -> None:
    """Decide go or no-go before a launch. Changes nothing.

    Checks the checkpoint, health, config, launch, start and disk. Exits with 0 only if a start with the current
    config resumes from the checkpoint that preflight names. If the training script names the checkpoint, that cannot
    be checked, and is only a note. With --allow start-differs, judges the config that `launch` would write instead.

    Example: ckpttool preflight ./output/checkpoint --config pretrain.yaml
    """
    from ckpttool.core.verbs import preflighting

    question = PreflightQuestion(
        config=config,
        tree=from_here(tree),
        choice=choice,
        data=replace(data, sink_size=tree.steps_per_epoch),
        start=start,
        devices=devices,
        strict=strict,
        allowed=report.allowed(),
        view=look,
    )
    reports.assert_reports_replaceable(report.files(), inputs=report.existing(config), tree=question.tree)
    with engine.reading(quiet=quiet):
        answer = preflighting.preflight(question)
    output.looking_at(answer.resolved_from, quiet=quiet)
    raise typer.Exit(reports.show(answer, report))
