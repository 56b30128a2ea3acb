"""`ckpttool prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import output, output_files, progress
from ckpttool.cli.answers import PRUNE, PRUNE_APPLIED, show, show_each
from ckpttool.cli.grouped import grouped
from ckpttool.cli.options import ConfigPath, Format, FormatOpt, Grace, LevelName, MaxAge, MoreDirs, Quiet, TreeOptions
from ckpttool.cli.units import duration
from ckpttool.domain.finding import Finding
from ckpttool.domain.frozen import dataclass, replace
from ckpttool.domain.prune_plan import ApplyOrder
from ckpttool.domain.retention import PLAN_SECONDS, PruneOrder, Pruning, RetentionPolicy
from ckpttool.errors import ExitCode, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOptions:
    """What stays."""

    keep_last: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Keep the N newest good ones; nothing goes before. A must, but for --apply-plan."
        ),
    ] = None
    keep_every: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Also the first at or after each multiple.")
    ] = None
    keep_healthy: Annotated[int, typer.Option(min=0, metavar="N", help="Also the N newest recorded as healthy.")] = 0
    keep: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also this one; repeat it.")] = None
    drop_abandoned: Annotated[
        bool, typer.Option("--drop-abandoned", help="Branches that the training left may go as well.")
    ] = False
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only file names that begin so, where trainings share DIR.")
    ] = None

    @property
    def said(self) -> list[str]:
        """The options that say what stays, of those that were given."""
        return [f"--{name.replace('_', '-')}" for name in self.__slots__ if getattr(self, name)]

    def policy(self) -> RetentionPolicy:
        """Ask the library.

        Raises:
            UsageError: Nobody says how many stay.
        """
        if self.keep_last is None:
            raise UsageError("--keep-last N is missing: how many of the newest good checkpoints stay")
        return RetentionPolicy(
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            keep_healthy=self.keep_healthy,
            keep=tuple(self.keep or ()),
            drop_abandoned=self.drop_abandoned,
            prefix=self.prefix,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """How to look, and what to do."""

    apply: Annotated[bool, typer.Option("--apply", help="Do it; without it nothing is changed.")] = False
    level: Annotated[
        LevelName | None,
        typer.Option(help="How hard to look at what stays; default: compare every checksum there is, else headers."),
    ] = None
    grace: Grace = 300.0
    wait: Annotated[
        float,
        typer.Option(
            parser=duration("m"),
            metavar="TIME",
            show_default=False,
            help="Wait so long for a save that is under way (10m, or minutes).",
        ),
    ] = 0.0
    trash_days: Annotated[
        float | None,
        typer.Option(
            parser=duration("d"),
            metavar="TIME",
            show_default=False,
            help="Keep what went in DIR/.ckpttool/trash for so long (7d, or days).",
        ),
    ] = None
    max_age: MaxAge = 24.0

    def order(self) -> PruneOrder:
        """Ask the library."""
        return PruneOrder(
            apply=self.apply,
            level=None if self.level is None else self.level.level,
            grace=self.grace,
            wait=self.wait * 60,
            trash_days=self.trash_days or 0.0,
            max_age=self.max_age * 3600,
        )

    def apply_order(self) -> ApplyOrder:
        """Ask the library about a plan that is there."""
        return ApplyOrder(apply=self.apply, grace=self.grace, wait=self.wait * 60, trash_days=self.trash_days)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What is written down for other machines, or was."""

    plan_out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write down what may go, for the machines that have the files."),
    ] = None
    plan_age: Annotated[
        float | None,
        typer.Option(
            parser=duration("m", to="s", least=60),
            metavar="TIME",
            show_default="60m",
            help="How long that plan is good (2h, or minutes).",
        ),
    ] = None
    apply_plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Let go what this machine has of such a plan (- is stdin), with --apply: to the trash."
        ),
    ] = None

    def assert_meant(self, more: list[str] | None, keep: KeepOptions) -> None:
        """See that no other option says something else.

        Raises:
            UsageError: One does.
        """
        option = "--plan-out" if self.apply_plan is None else "--apply-plan"
        if more and (self.plan_out, self.apply_plan) != (None, None):
            raise UsageError(f"{option} is about one tree: name one DIR")
        if self.plan_age is not None and self.plan_out is None:
            raise UsageError("--plan-age says how long a plan is good: it comes with --plan-out FILE")
        others = [*keep.said, *(["--plan-out"] if self.plan_out is not None else [])]
        if self.apply_plan is not None and others:
            raise UsageError(f"--apply-plan does what the plan says: leave out {', '.join(others)}")

    def with_plan(self, order: PruneOrder, tree: api.TreeQuestion) -> PruneOrder:
        """Ask the library for the plan, too.

        Raises:
            UsageError: It cannot be written there.
        """
        if self.plan_out is None:
            return order
        output_files.assert_plan_replaceable(self.plan_out, tree)
        return replace(order, plan_out=self.plan_out, plan_age=PLAN_SECONDS if self.plan_age is None else self.plan_age)


@grouped
def prune(
    *,
    tree: TreeOptions,
    more: MoreDirs = None,
    keep: KeepOptions,
    order: OrderOptions,
    plan: PlanOptions,
    config: ConfigPath = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Let replaced checkpoints go; a dry run unless --apply.

    What newer good ones replace goes, on all ranks or none. What is damaged, incomplete or unknown never goes, and
    counts for nothing. Ranks, names and meta.json stay in step.

    Example: ckpttool prune ./output/checkpoint --keep-last 3 --keep-every 10000
    """
    plan.assert_meant(more, keep)
    if plan.apply_plan is not None:
        raise typer.Exit(_applied(plan.apply_plan, tree, order, fmt, quiet=quiet))
    policy, asked = keep.policy(), plan.with_plan(order.order(), tree.question())

    def ask(path: str | None) -> Pruning:
        question = tree.question(config=config, path=path)
        with progress.watched(quiet=quiet):
            pruning = api.prune(question, policy, asked, waiting=None if quiet else _say)
        output.looking_at(pruning.resolved_from, quiet=quiet)
        return pruning

    raise typer.Exit(show_each(PRUNE, ask, (tree.path, *(more or ())), fmt))


def _applied(path: str, tree: TreeOptions, order: OrderOptions, fmt: Format, *, quiet: bool) -> ExitCode:
    """Ask about what this machine has of a plan, and show it."""
    answer = api.apply_plan(tree.question(), path, order.apply_order(), waiting=None if quiet else _say)
    output.looking_at(answer.resolved_from, quiet=quiet)
    return show(PRUNE_APPLIED, answer, fmt)


def _say(sign: Finding) -> None:
    output.note(f"waiting: {sign.path}: {sign.message}")
