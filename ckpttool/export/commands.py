"""The command `ckpttool export`."""

from __future__ import annotations

import typer

from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import (
    OF_A_TREE,
    OF_WRITING,
    Format,
    FormatOpt,
    Quiet,
    always_writes,
    exits,
    grouped,
)
from ckpttool.core.commands.tree_options import What
from ckpttool.export.model import ExportQuestion


@exits(
    {
        0: "The weights were written, and read back from the disk.",
        10: "The checkpoint is damaged or unfinished; nothing was written.",
        11: "There is no checkpoint to export.",
        12: OF_A_TREE[12],
        13: "Another ckpttool process is writing the same output.",
        14: "The weights cannot be exported, or a file could not be read; nothing was written.",
        15: OF_A_TREE[15],
        16: OF_WRITING[16],
    }
)
@always_writes
@grouped
def export(*, what: What = None, question: ExportQuestion, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Write the weights of a checkpoint as safetensors, without torch.

    Joins the slices of all ranks on a CPU, in memory that does not grow with its tensors. Compares the CRC-32
    of each record that it reads, and reads every file back. Writes nothing if the position of an element is unknown.

    Example: ckpttool export step-1000 --tree output/checkpoint --output exported
    """
    with progress.watched(quiet=quiet):
        from ckpttool.export import verbs

        answer = verbs.export(what, question)
    raise typer.Exit(show(answer, fmt))
