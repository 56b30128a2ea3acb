"""`ckpttool nan`: a group of three."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.helped import Command, command_group
from ckpttool.core.commands.options import Format, FormatOpt, Quiet, exits, grouped
from ckpttool.guard.model.capture import FOLDER, NanQuestion

_NO_CAPTURE = "There is no capture of a step that was not finite."

app = command_group("nan")


@app.callback()
@exits(
    {
        0: "Shown; or the step was reproduced.",
        10: "The replay did not reproduce the step.",
        12: _NO_CAPTURE,
        14: "A rank's part is missing or damaged; or the step cannot be computed again.",
    }
)
def nan() -> None:
    """Show captured steps with NaN, and compute one again.

    The guard in a training keeps the weights, the batches and the random-number state for it.

    Example: ckpttool guard inspect output/guard/captures/nan-at-00000220
    """


@app.command("list", cls=Command)
@exits({0: "Listed.", 12: _NO_CAPTURE, 14: "A rank's part is missing or damaged."})
@grouped
def list_captures(*, folder: Annotated[str, FOLDER], fmt: FormatOpt = Format.TABLE) -> None:
    """List the captures of a training, by step and rank. Needs no torch.

    Example: ckpttool guard list output
    """
    from ckpttool.guard.verbs import nan

    raise typer.Exit(show(nan.list_nan(folder), fmt))


@app.command(cls=Command)
@exits({0: "Shown.", 12: _NO_CAPTURE, 14: "A rank's part is missing or damaged."})
@grouped
def inspect(*, folder: Annotated[str, FOLDER], fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Show a capture: the rank and gradients with NaN, and what a replay needs. Needs no torch.

    Example: ckpttool guard inspect output/guard/captures/nan-at-00000220
    """
    from ckpttool.guard.verbs import nan

    with progress.busy("reading the tensors", quiet=quiet):
        answer = nan.inspect_nan(folder)
    raise typer.Exit(show(answer, fmt))


@app.command(cls=Command)
@exits(
    {
        0: "The same losses bit for bit, and the same gradients not finite.",
        10: "The step was not reproduced.",
        12: _NO_CAPTURE,
        14: "It cannot be computed again; the answer gives the reason.",
    }
)
@grouped
def replay(*, question: NanQuestion, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Compute a captured step again, compare it bit for bit, and find the origin of the NaN.

    Needs torch and your code. Runs one forward and backward pass per micro-batch, and no optimizer.

    Example: ckpttool guard replay output/guard/captures/nan-at-00000220 --entry train:replay
    """
    from ckpttool.guard.verbs import nan

    with progress.busy("computing it again", quiet=quiet):
        answer = nan.replay_nan(question)
    raise typer.Exit(show(answer, fmt))
