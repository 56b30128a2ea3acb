"""The command `ckpttool verify`."""

from __future__ import annotations

import re
import sys
import time
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Annotated

import typer

from ckpttool.core.commands import output
from ckpttool.core.commands.answers import show_each
from ckpttool.core.commands.options import OF_A_TREE, Format, FormatOpt, Quiet, exits, finite, grouped
from ckpttool.core.commands.output_files import assert_outside, assert_replaceable, first_line
from ckpttool.core.commands.tree_options import (
    EngineOptions,
    Jobs,
    LevelName,
    LevelOpt,
    MaxAge,
    MoreDirs,
    Names,
    Timeout,
    from_here,
    say_tree,
)
from ckpttool.core.domain.amounts import share
from ckpttool.core.domain.forecast import Forecast
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.verdict import Verdict, Verification
from ckpttool.core.domain.view import View
from ckpttool.core.errors import UsageError
from ckpttool.core.render.escape import size
from ckpttool.core.storage import is_local

if TYPE_CHECKING:
    from fractions import Fraction

    from ckpttool.core.storage.base import ByteSource
    from ckpttool.core.verbs.scanning import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The shards to check, and how thoroughly."""

    level: LevelOpt = LevelName.STRUCTURE
    checkpoint: Names = None
    subset: Annotated[
        str | None,
        typer.Option(
            metavar="N/T|10%|50G",
            help="Read only part N of T, or a share or amount that rotates daily.",
            rich_help_panel="Evidence",
        ),
    ] = None
    jobs: Jobs = None
    timeout: Timeout = 600.0
    jump: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            min=0,
            metavar="FACTOR",
            help="Factor by which a norm must change to be suspect; 0: do not compare. Default: 1000.",
            rich_help_panel="Evidence",
        ),
    ] = None
    max_age: MaxAge = 24.0
    stats: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write statistics per tensor as JSON lines; needs --level numerics."),
    ] = None
    no_ledger: Annotated[
        bool,
        typer.Option(
            "--no-ledger", help="Read everything again, ignoring earlier results.", rich_help_panel="Evidence"
        ),
    ] = False
    no_replicas: Annotated[
        bool,
        typer.Option(
            "--no-replicas",
            help="Do not read other checkpoints to find out which ranks have copies.",
            rich_help_panel="Evidence",
        ),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show how much would be read: bytes, tasks and object-store requests.",
            rich_help_panel="Evidence",
        ),
    ] = False
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Confirm reading more than 1 TiB from an object store, if there is no terminal.",
            rich_help_panel="Evidence",
        ),
    ] = False

    def question(self, *, trees: int) -> CheckQuestion:
        """Return these options as the library's question about this number of trees.

        Raises:
            UsageError: The value of an option is invalid.
        """
        if self.jump is not None and not (self.jump == 0 or self.jump > 1):
            raise UsageError(f"--jump takes a factor above 1, or 0 for no comparison, not {self.jump:g}")
        if self.stats is not None and self.level is not LevelName.NUMERICS:
            raise UsageError("--stats needs --level numerics")
        if self.stats is not None and trees > 1:
            raise UsageError("--stats works for one tree: give one DIR")
        subset = None if self.subset is None else bucket(self.subset)
        return CheckQuestion(
            level=self.level.level,
            name=tuple(self.checkpoint or ()),
            bucket=subset if isinstance(subset, tuple) else None,
            jobs=self.jobs,
            timeout=self.timeout,
            jump=self.jump,
            max_age=None if self.no_ledger else self.max_age * 3600,
            replicas=not self.no_replicas,
        )

    def today(self, question: CheckQuestion, tree: Tree, *, quiet: bool) -> CheckQuestion:
        """Convert a share of all bytes to today's subset; the subset changes each day until all bytes are read."""
        subset = None if self.subset is None else bucket(self.subset)
        if subset is None or isinstance(subset, tuple):
            return question
        from ckpttool.core.verbs.verifying import bytes_to_read  # its help must not wait for this import

        parts = max(1, -(-bytes_to_read(tree, question) // subset) if isinstance(subset, int) else ceil(1 / subset))
        number = part_of(int(time.time() // 86400), parts)
        if not quiet:
            output.note(f"--subset {self.subset} is part {number}/{parts} today; the part changes daily")
        return replace(question, bucket=(number, parts))


_DEAR_BYTES = 1 << 40
"""Transfer out of a region costs money: $92 for this amount, at $0.09 per GB."""


def part_of(day: int, parts: int) -> int:
    """Return the number of a day's subset, counted from 1. Runs at any regular interval use all subsets in turn.

    The remainder of the day number would always select the same one of 7 parts for a weekly run. The digit sum in
    base `parts` does not: along every arithmetic progression, all remainders are equally frequent (Gelfond, 1968), and
    on `parts` consecutive days from a multiple of `parts`, each remainder once.
    """
    total = 0
    while day and parts > 1:
        day, digit = divmod(day, parts)
        total += digit
    return total % parts + 1


def bucket(text: str) -> tuple[int, int] | Fraction | int:
    """Parse `--subset`: N/T, a fraction of all bytes, or a number of bytes.

    Raises:
        UsageError: The text has a different form, or N and T are not whole numbers with 1 <= N <= T.
    """
    if (part := share(text)) is not None:
        return part
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is not None and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise UsageError(f"--subset takes N/T, such as 1/7, or 10%, or 50G, not {text!r}")


@exits(
    {
        0: "Every checked shard is intact.",
        10: "A checkpoint is damaged or suspect.",
        11: "There is no checkpoint to check.",
        **OF_A_TREE,
    }
)
@grouped
def verify(
    *,
    tree: TreeQuestion,
    more: MoreDirs = None,
    check: CheckOptions,
    look: View,
    engine: EngineOptions,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Check the headers, all bytes or all elements of every shard.

    Some damage is detected only with a checksum (from ckpttool seal) or a copy on another rank: changed tensor
    data, a zeroed page in the middle of a file, another rank's shard of the same shape, or an older shard of the same
    step.

    Example: ckpttool verify ./output/checkpoint --level checksum --checkpoint all
    """
    check_question, paths = check.question(trees=1 + len(more or ())), (tree.path, *(more or ()))
    with_stats: list[Verification] = []

    def ask(path: str | None) -> Verification:
        scanned = _scanned_tree(tree, path, quiet=quiet, verbose=look.everything)
        answer = replace(_verified(scanned, check_question, check, engine, quiet=quiet), view=look)
        with_stats.extend([answer] if check.stats is not None else [])
        return answer

    foresee = partial(_foreseen, tree, check_question, check, quiet=quiet)
    code = show_each(foresee, paths, fmt) if check.dry_run else show_each(ask, paths, fmt)
    for answer in with_stats:
        _write_stats(str(check.stats), answer)
    raise typer.Exit(code)


def _scanned_tree(tree: TreeQuestion, path: str | None, *, quiet: bool, verbose: bool) -> Tree:
    question = from_here(tree, sizes=True, path=path)
    from ckpttool.core.verbs import scanning
    from ckpttool.core.verbs.scanning import with_note_of_others  # its help must not wait for this import

    scanned = with_note_of_others(scanning.scan(question), question)
    say_tree(scanned, quiet=quiet, verbose=verbose)
    return scanned


def _foreseen(
    tree: TreeQuestion, question: CheckQuestion, check: CheckOptions, path: str | None, *, quiet: bool
) -> Forecast:
    from ckpttool.core.verbs import verifying

    scanned = _scanned_tree(tree, path, quiet=quiet, verbose=False)
    return verifying.forecast(scanned, check.today(question, scanned, quiet=quiet))


def _assert_watched(scanned: Tree, question: CheckQuestion, *, yes: bool) -> None:
    """Require a confirmation if the amount read from a store is large enough to cost money.

    Raises:
        UsageError: The confirmation is missing.
    """
    if yes or is_local(scanned.inventory.root) or (sys.stderr is not None and sys.stderr.isatty()):
        return
    from ckpttool.core.verbs.verifying import bytes_to_read  # its help must not wait for this import

    nbytes = bytes_to_read(scanned, question)
    if nbytes > _DEAR_BYTES:
        raise UsageError(
            f"{size(nbytes)} would be read from {scanned.inventory.root}, and there is no terminal to confirm it: "
            f"pass --yes, or see --dry-run first"
        )


def _verified(
    scanned: Tree,
    parameters: CheckQuestion,
    check: CheckOptions,
    engine: EngineOptions,
    *,
    quiet: bool,
) -> Verification:
    """Run the requested check and measure its duration."""
    from ckpttool.core.verbs import verifying

    question = check.today(parameters, scanned, quiet=quiet)
    if check.stats is not None:
        _assert_stats_replaceable(check.stats, scanned)
    _assert_watched(scanned, question, yes=check.yes)
    started = time.monotonic()
    with engine.reading(quiet=quiet):
        verdicts = [event for event in verifying.verify(scanned, question) if isinstance(event, Verdict)]
    return Verification(
        inventory=scanned.inventory,
        verdicts=tuple(verdicts),
        level=question.level,
        seconds=time.monotonic() - started,
    )


def _assert_stats_replaceable(path: str, tree: Tree) -> None:
    """Reject a target that is not ours, before hours of reading.

    Raises:
        UsageError: The target is in the tree, its folder does not exist, or it is a file of a different kind.
    """
    assert_outside(path, tree.inventory.root if tree.layout.is_tree else None, option="--stats")
    assert_replaceable(path, option="--stats", is_ours=_holds_numbers, purpose="numbers")


def _holds_numbers(source: ByteSource) -> bool:
    first = first_line(source)
    return isinstance(first, dict) and {"checkpoint", "tensor"} <= first.keys()


def _write_stats(path: str, answer: Verification) -> None:
    """Write each tensor's statistics to a file.

    Raises:
        CkptToolError: The file could not be written.
    """
    from ckpttool.core.render.answers.verdicts import stats_lines
    from ckpttool.core.write.files import replace

    replace(path, stats_lines(answer.verdicts).encode("ascii"), overwrite=True, backup=False)
