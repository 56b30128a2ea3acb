"""The command `ckpttool part`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import output
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_WRITING, Format, FormatOpt, Quiet, always_writes, exits, grouped
from ckpttool.core.commands.tree_options import (
    EngineName,
    EngineOptions,
    Jobs,
    LevelName,
    LevelOpt,
    MaxAge,
    Names,
    Timeout,
)
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.question import DIR, LAYOUT, CheckQuestion, TreeQuestion
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import ExitCode, IncompleteError, UsageError
from ckpttool.nodes.model import PartQuestion, Split

PartNumber = Annotated[
    str,
    typer.Option(
        "--part",
        metavar="I/N|auto[/N]",
        help="Number of this part, from 1; auto: number from the launcher.",
        rich_help_panel="Which part",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhichOptions:
    """The number of the part, its share of the work, and its output file."""

    out: Annotated[str, typer.Option("--out", metavar="FILE|FOLDER", help="File or folder for the part.")]
    part: PartNumber = "auto"
    split: Annotated[
        Split,
        typer.Option(
            "--split", help="How to divide the visible files among the processes.", rich_help_panel="Which part"
        ),
    ] = Split.AUTO
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks", metavar="A-B", help="Ranks that will start on this machine.", rich_help_panel="Which part"
        ),
    ] = None
    devices_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="D",
            help="Same as --ranks, as D consecutive ranks per machine.",
            rich_help_panel="Which part",
        ),
    ] = None
    run_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Name of this set of parts. Default: from the launcher.",
            rich_help_panel="Which part",
        ),
    ] = None

    def question(self, tree: TreeQuestion, check: CheckQuestion, *, seal: bool) -> PartQuestion:
        """Build the question for the library.

        Raises:
            UsageError: Two options contradict each other, or one is invalid.
        """
        return PartQuestion(
            tree=tree,
            check=check,
            out=self.out,
            part=self.part,
            split=self.split,
            ranks=_ranks(self),
            devices_per_node=self.devices_per_node,
            run=self.run_id,
            seal=seal,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookOptions:
    """The checkpoints to check, and how thoroughly."""

    level: LevelOpt = LevelName.STRUCTURE
    checkpoint: Names = None
    jobs: Jobs = None
    timeout: Timeout = 600.0
    max_age: MaxAge = 24.0
    seal: Annotated[
        bool,
        typer.Option(
            "--seal",
            help="Read the checkpoints that --checkpoint selects, and seal this machine's shards.",
            rich_help_panel="Watch",
        ),
    ] = False

    def question(self) -> CheckQuestion:
        """Build the question for the library."""
        return CheckQuestion(
            level=self.level.level,
            name=tuple(self.checkpoint or ()),
            jobs=self.jobs,
            timeout=self.timeout,
            max_age=self.max_age * 3600,
        )


@exits(
    {
        0: "The part was written, whether or not it records damage.",
        15: "The part was refused for safety: it is too large.",
        16: OF_WRITING[16],
    }
)
@grouped
@always_writes
def part(
    *,
    path: Annotated[str | None, DIR] = None,
    layout: Annotated[str | None, LAYOUT] = None,
    which: WhichOptions,
    look: LookOptions,
    engine: EngineOptions,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Record the part of a tree that this machine can see.

    Run it on every machine (srun --ntasks-per-node=1 ckpttool part …), then pass all parts to any command that
    reads a tree. Reads the headers of all checkpoints, and the contents of those that --checkpoint selects (with
    latest, the latest on each machine). Exits with 0 once the part is written, even if it records damage: a
    launcher would stop the other processes on any other exit code.

    Example: ckpttool part ./output --out /shared/parts/ --part 3/16
    """
    question = which.question(TreeQuestion(path=path, layout=layout), look.question(), seal=look.seal)
    with engine.reading(quiet=quiet):
        if engine.engine is EngineName.RAY:
            raise typer.Exit(_of_nodes(question, fmt))
        from ckpttool.nodes import verbs

        written = verbs.part(question)
    if written is None:
        output.looking_at(None, quiet=quiet, more="this process only coordinates the others and reads nothing")
    else:
        output.looking_at(written.resolved_from, quiet=quiet)
        show(written, fmt)


def _of_nodes(question: PartQuestion, fmt: Format) -> ExitCode:
    """Show each node's part when it is written, and report missing parts."""
    code = ExitCode.OK
    from ckpttool.nodes import verbs

    for written in verbs.parts_of_nodes(question):
        if isinstance(written, IncompleteError):
            output.error(str(written))
            code = written.exit_code
        else:
            show(written, fmt)
    return code


def _ranks(which: WhichOptions) -> tuple[Rank, ...] | None:
    if which.ranks is None:
        return None
    if which.devices_per_node is not None:
        raise UsageError("--ranks and --devices-per-node both set the ranks that start here: give only one")
    ranks: set[int] = set()
    for run in which.ranks.split(","):
        first, dash, last = run.partition("-")
        numbers = [first, last if dash else first]
        if not all(number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS for number in numbers):
            raise UsageError(f"--ranks takes A-B or numbers, such as 0-7 or 0,2,4, not {which.ranks!r}")
        ranks.update(range(int(numbers[0]), int(numbers[1]) + 1))
    if not ranks:
        raise UsageError(f"--ranks {which.ranks} contains no rank")
    return tuple(Rank(rank) for rank in sorted(ranks))


_MOST_DIGITS = 6
