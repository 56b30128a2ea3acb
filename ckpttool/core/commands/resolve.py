"""The command `ckpttool resolve`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from time import time as clock
from typing import TYPE_CHECKING, Annotated

import typer

from ckpttool.core.commands import output
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, Format, Quiet, exits, grouped
from ckpttool.core.commands.tree_options import (
    ConfigPath,
    EngineOptions,
    Simulate,
    SimulateMindFormers,
    from_here,
    say_tree,
)
from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.plan import FreshStart, NoResumePoint, Resolution, ResumePlan, Simulation
from ckpttool.core.domain.question import ResumeQuestion, StartQuestion, TreeQuestion
from ckpttool.core.domain.view import View
from ckpttool.core.errors import ExitCode, UsageError, unknown_word
from ckpttool.trainers.registry import FIRST, trainers

if TYPE_CHECKING:
    from ckpttool.core.render.json import Document
    from ckpttool.core.verbs.resolving import Answer

Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Exit with 10 if a newer checkpoint was skipped.", rich_help_panel="Which checkpoint"
    ),
]


class PlanFormat(str, Enum):
    """Output format of a plan."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


PlanFormatOpt = Annotated[
    PlanFormat, typer.Option("--format", help="Output format, for people, scripts or the training config.")
]
Field = Annotated[
    list[str] | None,
    typer.Option(
        "--print", metavar="FIELD", help="Print only this JSON field: resume_training, data.samples; repeatable."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The trainer whose choice is also shown."""

    simulate: Simulate = None
    version: SimulateMindFormers = None

    def simulation(self, answer: Answer) -> Simulation | None:
        """Simulate the start of the selected trainer, or return None if no simulation was requested.

        Raises:
            UsageError: Both options are set, the trainer is unknown, or the tree belongs to another trainer.
        """
        from ckpttool.core.verbs import resolving

        if self.simulate is None:
            return None if self.version is None else resolving.simulate(answer, self.version, trainer=FIRST)
        if self.version is not None:
            raise UsageError("--simulate and --simulate-mindformers are equivalent: use only one of them")
        name, _, version = self.simulate.partition("@")
        names = [trainer.name for trainer in trainers()]
        if name not in {OWN, *names}:
            raise unknown_word("trainer", name, names, f"choose from {OWN}, {', '.join(names)}")
        return resolving.simulate(answer, version or None, trainer=None if name == OWN else name)


OWN = "own"
"""The value that selects the tree's own trainer."""


@exits(
    {
        0: "A checkpoint was chosen, even if newer ones were skipped; or a start from scratch (with --or-start).",
        10: "A newer checkpoint was skipped (with --strict), or the loss exceeds --max-lost-steps or --max-lost-time.",
        11: "There is no checkpoint to resume from.",
        **OF_A_TREE,
    }
)
@grouped
def resolve(
    *,
    tree: TreeQuestion,
    choice: ResumeQuestion,
    start: StartQuestion,
    data: DataQuestion,
    look: View,
    engine: EngineOptions,
    config: ConfigPath = None,
    fmt: PlanFormatOpt = PlanFormat.TABLE,
    field: Field = None,
    strict: Strict = False,
    own: SimulateOptions,
    quiet: Quiet = False,
) -> None:
    """Choose the newest checkpoint that is intact on every rank.

    Also shows why each newer checkpoint was rejected, and how many data steps to skip. Reads headers, newest first,
    and stops at the first good checkpoint. If a small newer checkpoint lacks shards, reads all of it to find out
    whether `repair` can rebuild them.

    Example: ckpttool resolve ./output/checkpoint --gbs 768
    """
    question = from_here(tree, config=config)
    with engine.reading(quiet=quiet):
        answer = _resolved(question, choice, replace(data, sink_size=tree.steps_per_epoch), start)
    answer = replace(answer, strict=strict, now=clock(), view=look)
    if not isinstance(answer.decision, FreshStart):
        from ckpttool.core.verbs.starting import with_start  # its help must not wait for this import

        say_tree(answer.tree, quiet=quiet, verbose=look.everything)
        answer = replace(answer, decision=with_start(answer), simulation=own.simulation(answer))
    if field:
        raise typer.Exit(_print(answer, field))
    if fmt is PlanFormat.YAML:
        raise typer.Exit(_paste(answer))
    raise typer.Exit(show(answer, Format(fmt.value)))


def _resolved(question: TreeQuestion, choice: ResumeQuestion, data: DataQuestion, start: StartQuestion) -> Answer:
    if start == StartQuestion():
        from ckpttool.core.verbs import resolving

        return resolving.resolve(question, choice, data)
    from ckpttool.core.verbs.first_start import resolve_or_start  # few commands search for traces

    return resolve_or_start(question, choice, data, start)


def _print(answer: Resolution, names: Sequence[str]) -> ExitCode:
    """Print the requested values, one per line; nothing if there is no checkpoint, so that a script does not continue.

    Raises:
        UsageError: The field does not exist, or its value does not fit on one line.
    """
    from ckpttool.core.render.answers.plan import document
    from ckpttool.core.render.json import members

    code = answer.exit_code
    if isinstance(answer.decision, NoResumePoint) and not isinstance(answer.decision, FreshStart):
        output.error(f"there is no checkpoint in {answer.decision.root} to resume from: omit --print to see why")
        return code
    document_members = dict(members(document(answer)))
    output.result("\n".join([_value(document_members, name) for name in names]))
    return code


def _value(document_members: Mapping[str, Document], name: str) -> str:
    """Return the line to print for a field, given its dotted name or only the last part of it.

    Raises:
        UsageError: The field does not exist, or its value does not fit on one line.
    """
    from ckpttool.core.render.json import one_line

    # A bare last part is valid only if it occurs once; items of a list occur repeatedly.
    matches = [
        place for place in document_members if place.endswith(f".{name}") and not re.search(r"\.[0-9]+\.", place)
    ]
    place = name if name in document_members or len(matches) != 1 else matches[0]
    if place not in document_members:
        raise unknown_word("field", name, list(document_members), "--format json shows them", matches=matches)
    line = one_line(document_members[place])
    if line is None:
        raise UsageError(f"--print {place}: the field is not a single line; use --format json")
    return line


def _paste(answer: Resolution) -> ExitCode:
    """Write the settings as YAML, with an absolute path, because a config is usually in another folder."""
    from ckpttool.core.render.answers.plan import yaml

    plan = answer.decision
    if isinstance(plan, ResumePlan):
        plan = replace(plan, load=plan.load.at(str(Path(plan.load.path).absolute())))
    output.result(yaml(replace(answer, decision=plan)))
    return answer.exit_code
