"""`ckpttool guard`: the events of a guarded training run, and its captures of steps with NaN."""

from __future__ import annotations

from enum import Enum
from functools import partial
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
    str | None, typer.Option(metavar="FILE", help="Also write metrics for node_exporter's textfile collector.")
]


@app.callback()
@exits(
    {
        0: "Nothing needs attention, or the captures were shown.",
        10: "report: something needs attention. replay: the step was not reproduced.",
        12: "list, inspect, replay: there is no capture of a non-finite step.",
        14: "A file could not be read, or contains no events.",
        16: OF_WRITING[16],
    }
)
def guard() -> None:
    """Show what happened in a guarded run, and replay a NaN step.

    Example: ckpttool guard report output
    """


@app.command(cls=Command)
@exits(
    {
        0: "Nothing needs attention.",
        10: "Training stopped, the last save failed, or there was a strike, wrong product, disagreement or capture.",
        14: "A file could not be read, or contains no events.",
        16: OF_WRITING[16],
    }
)
@grouped
def report(
    *, events: Events, prometheus: Prometheus = None, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False
) -> None:
    """Show the guard's events by rank, and what to do next.

    Reads the guard's event files from the run's output folder, during training or afterwards.

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


_option = partial(typer.Option, rich_help_panel="Policy")


class Policies(str, Enum):
    """Policies by their names; `features` is a separate option."""

    ZSCORE = "zscore"
    SKIP = "skip"
    ZCLIP = "zclip"
    OLMO = "olmo"


@app.command("run", cls=Command, context_settings={"allow_interspersed_args": False})
@exits(
    {
        0: "The command exited with 0; its other exit codes are passed through.",
        2: "A setting is wrong; nothing was started.",
    }
)
@grouped
def run(
    *,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="Command that starts the training run.", rich_help_panel="Arguments"),
    ],
    folder: Annotated[str, typer.Option("--output", metavar="DIR", help="Output folder of the run.")] = "output",
    policy: Annotated[
        Policies | None, _option(help="Also drop spikes, by this policy. Default: only NaN and infinity.")
    ] = None,
    threshold: Annotated[float | None, _option(help="Threshold of the policy.", metavar="X")] = None,
    watch: Annotated[bool, _option("--watch", help="Drop nothing; report the updates that would be dropped.")] = False,
    features: Annotated[
        str | None,
        _option(
            help="Gradient checks, in the form of NPU_ASD_CONFIG. Default: the value of that variable.", metavar="TEXT"
        ),
    ] = None,
    patrol: Annotated[
        int, _option(help="Check matrix products at this interval; 0: never.", metavar="STEPS", min=0)
    ] = 0,
) -> None:
    """Start a training run with the guard on, without changing its code.

    Sets CKPTTOOL_GUARD and runs the command. ckpttool and torch 2.6 or later must be installed in its environment.

    Example: ckpttool guard run --policy zscore -- torchrun --nproc-per-node 8 train.py
    """
    import os

    from ckpttool.core.errors import UsageError
    from ckpttool.guard.switch import VARIABLE, Switch, environment

    switch = Switch(
        output=folder,
        policy="" if policy is None else policy.value,
        threshold=threshold,
        mode="watch" if watch else "act",
        features=features,
        patrol=patrol,
    )
    switch.assert_valid()
    if output.is_dry_run():
        from ckpttool.core.render.shell import join, quote

        typer.echo(f"{VARIABLE}={quote(str(switch))} {join(command)}")
        return
    try:
        os.execvpe(command[0], command, environment(switch, os.environ.items()))  # noqa: S606  as `env` does
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None


app.command("list", cls=Command)(commands_nan.list_captures)
app.command("inspect", cls=Command)(commands_nan.inspect)
app.command("replay", cls=Command)(commands_nan.replay)
