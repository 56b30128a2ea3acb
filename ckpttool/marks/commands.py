"""The command `ckpttool mark`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, DryRun, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import from_here
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import LogQuestion, TreeQuestion
from ckpttool.core.errors import UsageError

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        autocompletion=completing.checkpoints,
        help="Name of the checkpoint to mark. Without NAME, lists the marks of DIR.",
        rich_help_panel="Which tree",
    ),
]
Bad = Annotated[
    str | None,
    typer.Option(
        "--bad",
        metavar="REASON",
        help="Mark NAME as bad: no command chooses it, and prune does not count it as good.",
        rich_help_panel="Mark",
    ),
]
Good = Annotated[
    bool,
    typer.Option(
        "--good",
        help="Mark NAME as healthy, also if the trainer recorded it as unhealthy.",
        rich_help_panel="Mark",
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Reason for --good or --clear.", rich_help_panel="Mark"),
]
AfterFailedStarts = Annotated[
    int | None,
    typer.Option(
        "--after-failed-starts",
        min=1,
        metavar="N",
        help="Mark the checkpoint from which the last N starts in the logs ended before the next save as bad.",
        rich_help_panel="Mark",
    ),
]
Clear = Annotated[bool, typer.Option("--clear", help="Remove the mark of NAME.", rich_help_panel="Mark")]


@exits(
    {
        0: "The mark was written, or the marks were listed.",
        11: "There is no checkpoint to mark.",
        **OF_A_TREE,
        14: "A mark or a file of the checkpoint could not be read.",
        **OF_WRITING,
    }
)
@grouped
def mark(
    *,
    name: Name = None,
    tree: TreeQuestion,
    bad: Bad = None,
    good: Good = False,
    reason: Reason = None,
    clear: Clear = False,
    after_failed_starts: AfterFailedStarts = None,
    logs: LogQuestion,
    dry_run: DryRun = False,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Mark a checkpoint as bad or good for resolve, launch and prune.

    A mark is a small record next to the seals, with the reason, the user and the time. It belongs to the files that
    were marked: if a later run saves the same name again, the mark does not count.

    --after-failed-starts is for a supervisor, between two starts: no run then restarts from a bad checkpoint for ever.

    Example: ckpttool mark 20_2 ./output/checkpoint --bad "loss diverged after it"
    """
    from ckpttool.marks import verbs
    from ckpttool.marks.model import MarkKind, MarkQuestion

    requested = [
        kind
        for kind, is_requested in (
            (MarkKind.BAD, bad is not None),
            (MarkKind.GOOD, good),
            (MarkKind.CLEARED, clear),
        )
        if is_requested
    ]
    if len(requested) > 1:
        raise UsageError("--bad, --good and --clear cannot be used together")
    if reason is not None and (not requested or bad is not None):
        raise UsageError("--reason needs --good or --clear; give the reason of a bad checkpoint after --bad")
    if after_failed_starts is not None and (requested or reason is not None):
        raise UsageError(
            "--after-failed-starts finds the checkpoint itself: remove --bad, --good, --clear and --reason"
        )
    if after_failed_starts is None and logs != LogQuestion():
        raise UsageError("--log and --columns need --after-failed-starts N")
    path, checkpoint = _sorted_out(name, tree.path, has_mark=bool(requested))
    question = MarkQuestion(
        name=checkpoint,
        kind=requested[0] if requested else None,
        reason=reason if bad is None else bad,
        after_failed_starts=after_failed_starts,
        logs=logs,
        dry_run=dry_run,
    )
    answer = verbs.mark(from_here(replace(tree, path=path)), question)
    output.looking_at(answer.resolved_from, quiet=quiet)
    raise typer.Exit(show(answer, fmt))


def _sorted_out(name: str | None, path: str | None, *, has_mark: bool) -> tuple[str | None, str | None]:
    """Return DIR and NAME. A single argument is DIR if nothing is to be marked, or if it is a folder or a file.

    Raises:
        UsageError: A name is given, and no mark.
    """
    if name is None or (path is not None and has_mark):
        return path, name
    if os.sep in name or os.path.lexists(name):
        return name, None
    if not has_mark:
        raise UsageError(f"there is no folder {name!r}; to mark a checkpoint, add --bad REASON, --good or --clear")
    return path, name
