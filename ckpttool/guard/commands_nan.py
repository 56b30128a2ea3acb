"""`ckpttool nan`: a group of three."""

from __future__ import annotations

from typing import Annotated

import typer

import ckpttool
from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.helped import Command, Group
from ckpttool.core.commands.options import Format, FormatOpt, Quiet, exits, finite, grouped
from ckpttool.core.domain.frozen import dataclass

_NO_CAPTURE = "There is no capture of a step that was not finite."

app = typer.Typer(
    name="nan",
    cls=Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Folder = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER",
        help="A capture, a folder of captures, or a training's output folder.",
        rich_help_panel="Arguments",
    ),
]


@app.callback()
@exits(
    {
        0: "Shown; or the step came out as it was.",
        10: "Computed again, it did not come out as it was.",
        12: _NO_CAPTURE,
        14: "A rank's part is not there, or not what was written; or it cannot be computed again.",
    }
)
def nan() -> None:
    """Look at steps that were not finite, and compute one again.

    The guard in a training keeps what is needed for it: weights, batches, chance.

    Example: ckpttool nan inspect output/guard/captures/nan-at-00000220
    """


@app.command("list", cls=Command)
@exits({0: "Listed.", 12: _NO_CAPTURE, 14: "A rank's part is not there, or not what was written."})
@grouped
def list_captures(*, folder: Folder, fmt: FormatOpt = Format.TABLE) -> None:
    """List the captures of a training: at which step, of which rank. Needs no torch.

    Example: ckpttool nan list output
    """
    raise typer.Exit(show(ckpttool.list_nan(folder), fmt))


@app.command(cls=Command)
@exits({0: "Shown.", 12: _NO_CAPTURE, 14: "A rank's part is not there, or not what was written."})
@grouped
def inspect(*, folder: Folder, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Show a capture: whose NaN it was, in which gradients, and what a replay needs. Needs no torch.

    Example: ckpttool nan inspect output/guard/captures/nan-at-00000220
    """
    with progress.busy("reading the tensors", quiet=quiet):
        answer = ckpttool.inspect_nan(folder)
    raise typer.Exit(show(answer, fmt))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How to compute it."""

    entry: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Your own function that builds the model, from your own path.",
            rich_help_panel="Replay",
        ),
    ]
    rank: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="R", help="Only this rank; repeat it.  [default: all]", rich_help_panel="Replay"),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="cpu or cuda:N.  [default: as it was captured]", rich_help_panel="Replay"),
    ] = None
    exact: Annotated[
        bool, typer.Option("--exact", help="Demand every gradient to be equal in every bit.", rich_help_panel="Replay")
    ] = False
    no_locate: Annotated[
        bool, typer.Option("--no-locate", help="Do not look for where it began.", rich_help_panel="Replay")
    ] = False
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Weights for a capture that holds none (safetensors).", rich_help_panel="Replay"
        ),
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            callback=finite,
            metavar="S",
            help="Give up after so many seconds (exit 14).",
            rich_help_panel="Replay",
        ),
    ] = None

    def question(self, folder: str) -> ckpttool.NanQuestion:
        """Ask the library."""
        return ckpttool.NanQuestion(
            path=folder,
            entry=self.entry,
            ranks=tuple(self.rank or ()),
            device=self.device,
            exact=self.exact,
            locate=not self.no_locate,
            weights=self.weights,
            timeout=self.timeout,
        )


@app.command(cls=Command)
@exits(
    {
        0: "The same losses in every bit, and the same gradients not finite.",
        10: "It did not come out as it was.",
        12: _NO_CAPTURE,
        14: "It cannot be computed again, and it is said why.",
    }
)
@grouped
def replay(*, folder: Folder, options: ReplayOptions, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Compute a captured step again: is it the same to the last bit, and where did it begin?

    Needs torch, and your own code. One forward and backward of each micro-batch, and never an optimizer.

    Example: ckpttool nan replay output/guard/captures/nan-at-00000220 --entry train:replay
    """
    with progress.busy("computing it again", quiet=quiet):
        answer = ckpttool.replay_nan(options.question(folder))
    raise typer.Exit(show(answer, fmt))
