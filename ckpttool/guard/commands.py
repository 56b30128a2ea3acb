"""The command `ckpttool guard` for the events of a guarded training run, and its captures of steps with NaN."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ckpttool.core.commands import output, progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.helped import Command, command_group
from ckpttool.core.commands.options import OF_WRITING, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.guard import commands_nan

if TYPE_CHECKING:
    from ckpttool.guard.switch import ReplaySwitch

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


_replay_option = partial(typer.Option, rich_help_panel="Replay")


class Stops(str, Enum):
    """Points of a replayed step at which the debugger can open."""

    BEFORE = "before"
    AFTER = "after"


class Policies(str, Enum):
    """Names of the policies. `features` is a separate option."""

    ZSCORE = "zscore"
    SKIP = "skip"
    ZCLIP = "zclip"
    OLMO = "olmo"


@app.command("run", cls=Command, context_settings={"allow_interspersed_args": False})
@exits(
    {
        0: "The command exited with 0; its other exit codes are passed through.",
        2: "A setting is wrong; nothing was started.",
        10: "--replay: the step was not reproduced.",
        12: "--replay: there is no capture of a step that was not finite.",
        14: "--replay: the step cannot be replayed.",
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
    stop_on_capture: Annotated[
        bool, _option("--stop-on-capture", help="End the run at the first capture with weights.")
    ] = False,
    replay: Annotated[
        str | None,
        _replay_option(help="Begin the run with this captured step, compare it, and exit.", metavar="CAPTURE"),
    ] = None,
    stop: Annotated[
        Stops | None,
        _replay_option(help="Open the debugger before the replayed forward pass, or after the last backward pass."),
    ] = None,
    goes_on: Annotated[
        bool, _replay_option("--continue", help="Continue the training after the replayed step.")
    ] = False,
) -> None:
    """Start a training run with the guard on, without changing its code.

    Sets CKPTTOOL_GUARD and runs the command. ckpttool and torch 2.6 or later must be installed in its environment.
    --replay begins the run with a captured step, and exits with 0 if every loss and gradient is equal bit for bit.

    Example: ckpttool guard run --policy zscore -- torchrun --nproc-per-node 8 train.py
    """
    import os

    from ckpttool.core.errors import UsageError
    from ckpttool.guard.switch import Switch, environment, variables

    switch = Switch(
        output=folder,
        policy="" if policy is None else policy.value,
        threshold=threshold,
        mode="watch" if watch else "act",
        features=features,
        patrol=patrol,
        stop_on_capture=stop_on_capture,
    )
    switch.assert_valid()
    request = _replay_request(replay, stop, goes_on=goes_on)
    if output.is_dry_run():
        from ckpttool.core.render.shell import join, quote

        assignments = [f"{name}={quote(value)}" for name, value in variables(switch, request).items()]
        typer.echo(f"{' '.join(assignments)} {join(command)}")
        return
    try:
        os.execvpe(command[0], command, environment(switch, os.environ.items(), request))  # noqa: S606  as `env` does
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None


def _replay_request(path: str | None, stop: Stops | None, *, goes_on: bool) -> ReplaySwitch | None:
    """Return the request for a replay after checking that its capture exists, or None without `--replay`.

    Raises:
        CkptToolError: There is no capture, there are several, or the options need one.
    """
    import os

    from ckpttool.core.errors import UsageError
    from ckpttool.guard.files.parts import only_capture, records, refuse_unreplayable
    from ckpttool.guard.switch import ReplaySwitch

    if path is None:
        if stop is not None or goes_on:
            raise UsageError("--stop and --continue need --replay CAPTURE")
        return None
    capture = os.path.abspath(only_capture(path))
    for captured in records(capture):
        refuse_unreplayable(captured, path)
    return ReplaySwitch(capture=capture, stop="" if stop is None else stop.value, goes_on=goes_on)


app.command("list", cls=Command)(commands_nan.list_captures)
app.command("inspect", cls=Command)(commands_nan.inspect)
app.command("replay", cls=Command)(commands_nan.replay)
