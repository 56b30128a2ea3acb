"""`ckpttool guard`: the events of a guarded training, and its captures of steps with NaN."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import output, progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.helped import Command, command_group
from ckpttool.core.commands.options import OF_WRITING, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.guard import commands_nan

app = command_group("guard")

Events = Annotated[
    list[str],
    typer.Argument(
        metavar="EVENTS...",
        help="Event files, the output folder of a training run, globs, or -.",
        rich_help_panel="Arguments",
    ),
]
Prometheus = Annotated[
    str | None, typer.Option(metavar="FILE", help="Also write the numbers for node_exporter's textfile collector.")
]


@app.callback()
@exits(
    {
        0: "Nothing needs attention; or shown.",
        10: "report: something needs attention. replay: the step was not reproduced.",
        12: "list, inspect, replay: there is no capture of a step that was not finite.",
        14: "A file could not be read, or shows nothing.",
        16: OF_WRITING[16],
    }
)
def guard() -> None:
    """Show what happened in a guarded training, and replay a NaN step.

    Example: ckpttool guard report output
    """


@app.command(cls=Command)
@exits(
    {
        0: "Nothing needs attention.",
        10: "The training stopped, or its last save failed; a strike, a wrong product, a disagreement, a capture.",
        14: "A file could not be read, or shows nothing.",
        16: OF_WRITING[16],
    }
)
@grouped
def report(
    *, events: Events, prometheus: Prometheus = None, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False
) -> None:
    """Show what happened, by rank, and what to do next.

    Reads the guard's events in the training's output folder, during the run or afterwards.

    Example: ckpttool guard report output --prometheus /var/lib/node_exporter/ckpttool.prom
    """
    from ckpttool.guard.verbs import reports

    with progress.busy("reading the events", quiet=quiet):
        answer = reports.guard_report(events)
    if prometheus is not None and not output.is_dry_run():
        from ckpttool.core.write.files import replace
        from ckpttool.guard.answers.report import prometheus as spelled

        replace(prometheus, spelled(answer).encode(), overwrite=True, backup=False)
    raise typer.Exit(show(answer, fmt))


app.command("list", cls=Command)(commands_nan.list_captures)
app.command("inspect", cls=Command)(commands_nan.inspect)
app.command("replay", cls=Command)(commands_nan.replay)
