"""The commands that list, inspect and replay captures of NaN steps."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import output, progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.helped import Command, command_group
from ckpttool.core.commands.options import Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.domain.frozen import replace
from ckpttool.guard.model.capture import FOLDER, NanQuestion

_NO_CAPTURE = "There is no capture of a non-finite step."

app = command_group("nan")


@app.callback()
@exits(
    {
        0: "The captures were shown, or the step was reproduced.",
        10: "The replay did not reproduce the step.",
        12: _NO_CAPTURE,
        14: "A rank's part is missing or damaged; or the step cannot be recomputed.",
    }
)
def nan() -> None:
    """Show captured NaN steps, and recompute one.

    For this, the guard saves the weights, batches and random-number state during training.

    Example: ckpttool guard inspect output/guard/captures/nan-at-00000220
    """


@app.command("list", cls=Command)
@exits({0: "The captures were listed.", 12: _NO_CAPTURE, 14: "A rank's part is missing or damaged."})
@grouped
def list_captures(*, folder: Annotated[str, FOLDER], fmt: FormatOpt = Format.TABLE) -> None:
    """List the captures of a run by step and rank. Does not need torch.

    Example: ckpttool guard list output
    """
    from ckpttool.guard.verbs import nan

    raise typer.Exit(show(nan.list_nan(folder), fmt))


@app.command(cls=Command)
@exits({0: "The capture was shown.", 12: _NO_CAPTURE, 14: "A rank's part is missing or damaged."})
@grouped
def inspect(*, folder: Annotated[str, FOLDER], fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Show the rank and the gradients with NaN, and what a replay needs. Does not need torch.

    Example: ckpttool guard inspect output/guard/captures/nan-at-00000220
    """
    from ckpttool.guard.verbs import nan

    with progress.busy("reading the tensors", quiet=quiet):
        answer = nan.inspect_nan(folder)
    raise typer.Exit(show(answer, fmt))


@app.command(cls=Command)
@exits(
    {
        0: "The losses are bit-identical, and the same gradients are non-finite.",
        10: "The step was not reproduced.",
        12: _NO_CAPTURE,
        14: "The step cannot be recomputed; the output gives the reason.",
    }
)
@grouped
def replay(*, question: NanQuestion, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Recompute a captured step, compare it bit for bit, and find the origin of the NaN.

    Needs torch and your code. Runs one forward and backward pass per micro-batch, without the optimizer.

    Example: ckpttool guard replay output/guard/captures/nan-at-00000220 --entry train:replay
    """
    from ckpttool.guard.verbs import nan

    effective = replace(question, record=False) if output.is_dry_run() else question
    with progress.busy("recomputing the step", quiet=quiet):
        answer = nan.replay_nan(effective)
    raise typer.Exit(show(answer, fmt))
