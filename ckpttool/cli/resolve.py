"""`ckpttool resolve`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import output
from ckpttool.cli.answers import PLAN, show
from ckpttool.cli.grouped import grouped
from ckpttool.cli.log_options import EvidenceOptions
from ckpttool.cli.options import ChoiceOptions, ConfigPath, DataOptions, Format, FormatOpt, Quiet, Simulate, TreeOptions
from ckpttool.domain.plan import Resolution

Strict = Annotated[bool, typer.Option("--strict", help="Exit 10 where a newer checkpoint was rejected.")]


@grouped
def resolve(
    *,
    tree: TreeOptions,
    choice: ChoiceOptions,
    logs: EvidenceOptions,
    data: DataOptions,
    config: ConfigPath = None,
    fmt: FormatOpt = Format.TABLE,
    strict: Strict = False,
    version: Simulate = None,
    quiet: Quiet = False,
) -> None:
    """Choose the newest checkpoint that is whole on every rank.

    Says for every newer one why not, and how many data steps to skip. Reads headers only, newest first, and stops at
    the first good one.

    Example: ckpttool resolve ./output/checkpoint --gbs 768
    """
    question = tree.question(config=config)
    answer = api.resolve(question, choice.question(logs.question()), data.question(sink_size=tree.sink_size))
    output.looking_at(answer.tree.resolved_from, quiet=quiet)
    simulation = api.simulate(answer, version) if version is not None else None
    raise typer.Exit(show(PLAN, Resolution(decision=answer.decision, simulation=simulation, strict=strict), fmt))
