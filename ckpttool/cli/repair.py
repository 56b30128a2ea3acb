"""The command `ckpttool repair`: shards, and records that name a checkpoint; without a subcommand, it plans both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from ckpttool.core.commands import output, progress
from ckpttool.core.commands.helped import Command, Group, command_group
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import Grace, OneName, from_here, one_name
from ckpttool.core.domain.finding import of_trees
from ckpttool.core.domain.question import GRACE_SECONDS, ResumeQuestion, TreeQuestion
from ckpttool.core.errors import UsageError
from ckpttool.core.render.answers import texts_of
from ckpttool.core.render.escape import shown
from ckpttool.core.render.shell import join
from ckpttool.replicas import verbs
from ckpttool.replicas.commands import heal
from ckpttool.replicas.model import HealOrder
from ckpttool.retention import verbs_repair
from ckpttool.retention.commands_repair_meta import repair_meta

_HELP = frozenset({"-h", "--help", "--help-all"})


class _Repair(Group):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  the base class's signature
        """Accept `ckpttool repair DIR` as `ckpttool repair plan DIR`, and accept options before the command."""
        at = self._place_of_first_word(args)
        first = "" if at is None else args[at]
        is_command = first in self.commands or (not os.path.lexists(first) and get_close_matches(first, self.commands))
        if at is not None and is_command:
            args = [first, *args[:at], *args[at + 1 :]]
        elif not _HELP.isdisjoint(args):
            args = [arg for arg in args if arg in _HELP]
        elif at is not None or not ctx.resilient_parsing:
            rest = [] if at is None else args[at + 1 :]
            late = self._place_of_first_word(rest)
            if late is not None and rest[late] in self.commands and not os.path.lexists(rest[late]):
                raise UsageError(f"`{rest[late]}` comes first: {join(['ckpttool', 'repair', rest[late], first])}")
            args = ["plan", *args]
        return super().parse_args(ctx, args)

    def _place_of_first_word(self, args: Sequence[str]) -> int | None:
        """Return the index of the first argument before `--` that is neither an option nor an option's value."""
        takes_value = {
            name
            for command in self.commands.values()
            for param in command.params
            if not getattr(param, "is_flag", False)
            for name in param.opts
        }
        is_value = False
        for at, arg in enumerate(args):
            if arg == "--":
                break
            if not is_value and not arg.startswith("-"):
                return at
            is_value = not is_value and arg in takes_value
        return None


app = command_group("repair", cls=_Repair)


@app.callback()
@exits(
    {
        0: "No problem was found, or everything can be repaired.",
        10: "There is a problem that cannot be repaired.",
        11: "The repair was refused: no copy is proven, or there is no intact checkpoint.",
        **OF_A_TREE,
        **OF_WRITING,
    }
)
def repair() -> None:
    """Repair damaged shards and records (dry run unless --apply).

    `ckpttool repair DIR` shows what both commands would do, and changes nothing. It accepts --checkpoint and --grace.

    Example: ckpttool repair ./output/checkpoint
    """


app.command("shards", cls=Command)(heal)
app.command("pointer", cls=Command)(repair_meta)


@app.command(cls=Command, hidden=True)
@grouped
def plan(
    *,
    tree: TreeQuestion,
    checkpoint: OneName = None,
    grace: Grace = GRACE_SECONDS,
    apply: Annotated[bool, typer.Option("--apply", hidden=True)] = False,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Show what `repair shards` and `repair pointer` would do.

    Example: ckpttool repair ./output/checkpoint
    """
    if apply:
        raise UsageError(
            "--apply needs a command: `ckpttool repair shards --apply` or `ckpttool repair pointer --apply`"
        )
    question, name = from_here(tree), one_name(checkpoint)
    with progress.watched(quiet=quiet):
        healing = verbs.heal(question, HealOrder(checkpoint=name, grace=grace))
    records = verbs_repair.repair_meta(
        question, ResumeQuestion(name=name, ignore_health=True, skips_marked=True), grace=grace
    )
    output.looking_at(healing.resolved_from, quiet=quiet)
    code = of_trees((healing.exit_code, records.exit_code))
    if fmt is Format.JSON:
        from ckpttool.core.render.json import pieces

        shards, pointer = (texts_of(answer).document(answer) for answer in (healing, records))
        output.result(
            *pieces({"schema": "ckpttool/repairs/1", "exit_code": code, "shards": shards, "pointer": pointer})
        )
    else:
        output.result("Shards (ckpttool repair shards):")
        output.table(texts_of(healing).table(healing))
        output.result("\nRecords (ckpttool repair pointer):")
        output.table(texts_of(records).table(records))
        if healing.is_mended and records.fixes:
            output.result(
                f"\nRepair the shards first; after that, the records should point to {shown(healing.checkpoint.name)}."
            )
    raise typer.Exit(code)
