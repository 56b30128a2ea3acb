"""The command `ckpttool log calibrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.log_options import Logs
from ckpttool.core.commands.options import Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.domain.question import COLUMNS, LogQuestion

WarmUp = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="STEPS",
        help="Number of logged steps to leave out at the start. Default: a tenth.",
        rich_help_panel="Evidence",
    ),
]


@exits(
    {
        0: "Thresholds were computed.",
        10: "The stretch is not normal: more than 1 % of its steps would raise alarms.",
        14: "A log could not be read, or contains too little data.",
    }
)
@grouped
def calibrate(
    *,
    logs: Logs,
    warm_up: WarmUp = None,
    columns: Annotated[str | None, COLUMNS] = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Compute thresholds for a run from its training log.

    The log must cover a normal stretch of training, with at least 200 steps after the warm-up.

    Example: ckpttool log calibrate output/log/rank_0/info.log
    """
    from ckpttool.health.verbs import replay

    with progress.busy("reading the logs", quiet=quiet):
        answer = replay.calibrate(LogQuestion(patterns=tuple(logs), columns=columns), warm_up=warm_up)
    raise typer.Exit(show(answer, fmt))
