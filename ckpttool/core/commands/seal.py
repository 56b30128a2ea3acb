"""The command `ckpttool seal`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands.answers import show_each
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, Verbose, exits, grouped
from ckpttool.core.commands.tree_options import EngineOptions, Jobs, MoreDirs, Names, from_here, say_tree
from ckpttool.core.domain.forecast import Forecast
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import Sealed
from ckpttool.core.domain.question import TreeQuestion

Reseal = Annotated[
    bool,
    typer.Option(
        "--reseal",
        help="Record the current content if it differs from the seal.",
        rich_help_panel="What stays",
    ),
]


@exits(
    {
        0: "The checkpoints were sealed.",
        10: "A checkpoint is damaged, or differs from its seal.",
        11: "There is no checkpoint to seal.",
        **OF_A_TREE,
        **OF_WRITING,
    }
)
@grouped
def seal(
    *,
    tree: TreeQuestion,
    more: MoreDirs = None,
    checkpoint: Names = None,
    reseal: Reseal = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show how much would be read, and seal nothing.")] = False,
    jobs: Jobs = None,
    engine: EngineOptions,
    fmt: FormatOpt = Format.TABLE,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Record the checksums of a checkpoint, to detect later damage.

    Seals only intact checkpoints. If a sealed file has changed, keeps the old record and reports the difference.

    Example: ckpttool seal ./output/checkpoint --checkpoint all
    """

    def ask(path: str | None) -> Sealed:
        from ckpttool.core.verbs import scanning, sealing

        scanned = scanning.scan(from_here(tree, sizes=True, path=path))
        say_tree(scanned, quiet=quiet, verbose=verbose)
        with engine.reading(quiet=quiet):
            sealings = tuple(sealing.seal(scanned, tuple(checkpoint or ()), reseal=reseal, jobs=jobs))
        return Sealed(inventory=scanned.inventory, sealings=sealings)

    def foresee(path: str | None) -> Forecast:
        from ckpttool.core.verbs import scanning, sealing, verifying

        scanned = scanning.scan(from_here(tree, sizes=True, path=path))
        say_tree(scanned, quiet=quiet, verbose=verbose)
        return verifying.forecast(scanned, replace(sealing.TO_SEAL, name=tuple(checkpoint or ())))

    raise typer.Exit(show_each(foresee if dry_run else ask, (tree.path, *(more or ())), fmt))
