"""The command `ckpttool scale-skip`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, Format, FormatOpt, exits, grouped
from ckpttool.core.domain.data_position import SEGMENT, BatchSegment, DataQuestion

OldGbs = Annotated[int | None, typer.Option(min=1, help="Previous global batch size.", rich_help_panel="Data position")]
NewGbs = Annotated[
    int,
    typer.Option(
        "--new-gbs",
        "--gbs",
        min=1,
        metavar="N",
        help="New global batch size.",
        rich_help_panel="Data position",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        "--step",
        min=0,
        help="Batches consumed so far. Default: taken from the resume point of DIR.",
        rich_help_panel="Data position",
    ),
]
Sink = Annotated[
    int | None, typer.Option(min=1, help="Batches per data sink in the resumed run.", rich_help_panel="Data position")
]
Place = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR]",
        help="Checkpoint tree whose resume point provides the steps and the old batch size.",
        rich_help_panel="Which tree",
    ),
]


@exits({0: "The value was computed.", 11: "There is no checkpoint in DIR to resume from.", **OF_A_TREE})
@grouped
def scale_skip(
    *,
    new_gbs: NewGbs,
    path: Place = None,
    old_gbs: OldGbs = None,
    steps: Steps = None,
    segment: Annotated[tuple[BatchSegment, ...], SEGMENT] = (),
    sink_size: Sink = None,
    fmt: FormatOpt = Format.TABLE,
) -> None:
    """Compute data_skip_steps for a new global batch size.

    Example: ckpttool scale-skip --old-gbs 512 --new-gbs 768 --steps 1000
    """
    from ckpttool.core.verbs import skipping

    question = DataQuestion(new_global_batch=new_gbs, old_global_batch=old_gbs, sink_size=sink_size, segments=segment)
    raise typer.Exit(show(skipping.scale_skip(question, steps=steps, path=path), fmt))
