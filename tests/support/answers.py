"""Ask ckpttool and take the answer apart: for tests of what it decides about a whole tree."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ckpttool
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.data_position import GoesOn
from ckpttool.core.domain.finding import Code, Finding, Row
from ckpttool.core.domain.plan import NoResumePoint, ResumePlan, Simulation
from ckpttool.core.domain.preflight import Check, Preflight, exit_of
from ckpttool.core.domain.retention import PruneOrder, RetentionPolicy
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import ExitCode
from ckpttool.types import CheckQuestion, DataQuestion, PreflightQuestion, ResumeQuestion, TreeQuestion
from tests.support import trees
from tests.support.commands import ask

FIXTURES = trees.FIXTURES

cli = ask
"""What older tests call it; new ones say `ask`."""


def decide(
    path: Path | str,
    *,
    tree: TreeQuestion | None = None,
    choice: ResumeQuestion | None = None,
    data: DataQuestion | None = None,
) -> ResumePlan | NoResumePoint:
    """Resolve a tree."""
    question = tree or TreeQuestion(path=str(path))
    return ckpttool.resolve(question, choice or ResumeQuestion(), data or DataQuestion()).decision


def plan(
    path: Path | str,
    *,
    tree: TreeQuestion | None = None,
    choice: ResumeQuestion | None = None,
    data: DataQuestion | None = None,
) -> ResumePlan:
    """Resolve a tree in which there is something to resume from."""
    decision = decide(path, tree=tree, choice=choice, data=data)
    assert isinstance(decision, ResumePlan), why_not(decision)
    return decision


def refusal(
    path: Path | str,
    *,
    tree: TreeQuestion | None = None,
    choice: ResumeQuestion | None = None,
) -> NoResumePoint:
    """Resolve a tree in which there is nothing to resume from."""
    decision = decide(path, tree=tree, choice=choice)
    assert isinstance(decision, NoResumePoint), chosen(decision)
    return decision


def preflighted(
    path: Path | str,
    config: Path | str,
    *,
    devices: int | None = None,
    **tree: Any,  # noqa: ANN401  as the test gives them
) -> tuple[ExitCode, list[Finding]]:
    """How a preflight of what `launch` would write ends, and what stands against the launch."""
    question = PreflightQuestion(
        config=str(config),
        tree=TreeQuestion(path=str(path), **tree),
        choice=ResumeQuestion(),
        data=DataQuestion(),
        devices=devices,
        allowed=(Code.START_DIFFERS,),
    )
    checks = ckpttool.preflight(question).checks
    against = [reason.finding for check in checks for reason in check.reasons if reason.blocks]
    return exit_of(checks), against


def chosen(answer: ResumePlan) -> tuple[str, int | None]:
    """Name and step of the checkpoint that was chosen."""
    return answer.point.checkpoint.name, answer.point.checkpoint.step


def why_not(answer: ResumePlan | NoResumePoint) -> list[tuple[str, set[Row]]]:
    """Every rejected checkpoint, newest first, with the codes that speak against it."""
    rejected = answer.rejected if isinstance(answer, NoResumePoint) else answer.point.rejected
    return [(one.checkpoint.name, {reason.code for reason in one.reasons}) for one in rejected]


def reasons(answer: ResumePlan | NoResumePoint, name: str) -> tuple[Finding, ...]:
    """What speaks against one checkpoint."""
    rejected = answer.rejected if isinstance(answer, NoResumePoint) else answer.point.rejected
    return next(one.reasons for one in rejected if one.checkpoint.name == name)


def codes(findings: Iterable[Finding]) -> set[Row]:
    """Which codes there are."""
    return {finding.code for finding in findings}


def coded(findings: Iterable[Finding], code: Row) -> list[Finding]:
    """The findings of one code."""
    return [finding for finding in findings if finding.code is code]


def notes(answer: ResumePlan | NoResumePoint) -> set[Row]:
    """What is said about the tree and the plan as a whole."""
    return codes((*answer.findings, *(answer.point.findings if isinstance(answer, ResumePlan) else ())))


def goes_on(answer: ResumePlan) -> GoesOn:
    """Where the data go on, of which something is known."""
    assert isinstance(answer.data, GoesOn), answer.data
    return answer.data


def simulated(path: Path | str, *, world: int | None = None) -> Simulation:
    """What the trainer of a tree takes by itself."""
    return ckpttool.library.simulate(ckpttool.resolve(TreeQuestion(path=str(path), world_size=world)), None)


def start_check(answer: Preflight) -> Check:
    """What a preflight says of the start itself."""
    (check,) = [check for check in answer.checks if check.name == "start"]
    return check


def verdict(path: Path | str, name: str | None = None, level: Level = Level.STRUCTURE) -> Verdict:
    """The verdict on the newest save of a tree, or on the one of this name."""
    events = ckpttool.verify(
        ckpttool.scan(TreeQuestion(path=str(path), sizes=True)),
        CheckQuestion(level=level, name=name),
    )
    return next(event for event in events if isinstance(event, Verdict))


def going(path: Path | str) -> set[str]:
    """The saves that a prune takes where one is to be kept."""
    pruning = ckpttool.prune(str(path), RetentionPolicy(keep_last=1), PruneOrder(grace=0.0))
    return {save.name for save in pruning.plan.going}


def scanned(path: Path | str, *, tree: TreeQuestion | None = None) -> Inventory:
    """List a tree."""
    return ckpttool.scan(tree or TreeQuestion(path=str(path))).inventory


def names(inventory: Inventory) -> list[str]:
    """The checkpoints' names, in the order of the inventory."""
    return [checkpoint.name for checkpoint in inventory.checkpoints]


def named(inventory: Inventory, name: str) -> Checkpoint:
    """The only checkpoint of this name."""
    (found,) = [one for one in inventory.checkpoints if one.name == name]
    return found


def document(*arguments: str) -> Any:  # noqa: ANN401  JSON
    """Run a command with `--format json` and return what it printed."""
    return json.loads(ask(*arguments, "--format", "json").stdout)


def writable_copy(name: str, target: Path) -> Path:
    """Copy a fixture tree, free to be damaged, and return its output folder."""
    return trees.writable(FIXTURES / name, target) / "output"


def without_runs(output: Path, first: int) -> Path:
    """Take the tree back to before run `first`: its files and those of all later runs go."""
    for path in list((output / "checkpoint").glob("rank_*/*_rank_*-*")):
        head = path.name.rpartition("-")[0].rpartition("_rank_")[2]
        run = int(head.partition("_")[2] or 0)
        if run >= first:
            path.unlink()
    return output
