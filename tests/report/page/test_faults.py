"""A page shows every fault that was planted, at its save, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import UnknownLayoutError
from ckpttool.report.verbs import page
from ckpttool.types import PageForm, ReportQuestion, ResumePlan, ResumeQuestion, TreeQuestion, TreeReport
from tests.support.report_pages import findings, marks, read
from tests.support.trainer_trees import damaged, faults, healthy, truths

AT_CHECKSUM = ResumeQuestion(evidence=Level.CHECKSUM)


def asked(root: Path) -> ReportQuestion:
    return ReportQuestion(tree=TreeQuestion(path=str(root)), choice=AT_CHECKSUM)


def edited(fault: str) -> list[str]:
    return [str(edit.get("to", edit["path"])) for edit in faults()[fault]["edits"]]


@pytest.mark.sample(12)
@pytest.mark.parametrize("fault", sorted(faults()))
def test_a_fault_is_shown_at_its_save_and_no_other_save_is_marked(fault: str, tmp_path: Path) -> None:
    recipe, answer = faults()[fault], ckpttool.library.survey(asked(damaged(fault, tmp_path)))
    shown = read(page(answer, PageForm.HTML))
    chosen = recipe.get("should_resume_at_checksum", recipe["should_resume"])
    headline = shown.all("h1")[0].text
    assert headline.startswith("Nothing to resume from" if chosen is None else "Resume from step ")
    assert chosen is None or headline.endswith(f" ({chosen})")
    bad = {name for name, kinds in marks(shown).items() if kinds != {"ok"}}
    assert all(any(name in path for path in edited(fault)) for name in bad), (bad, edited(fault))
    if chosen != truths()[recipe["tree"]]["should_resume"]:
        assert bad, "what was damaged is marked"
    grave = [found for found in findings(shown) if found[0] != "note"]
    assert {save for _, _, save, _ in grave} - bad <= {"the tree", "the resume"}
    for name in bad:
        assert any(save == name for _, _, save, _ in grave), f"{name} is marked, and nothing says why"
    assert {(weight, code) for weight, code, _, _ in grave} == told_by(answer)


def told_by(answer: TreeReport) -> set[tuple[str, str]]:
    """The findings that `verify` and `resolve` have, but for the notes."""
    told = [found for verdict in answer.verification.verdicts for found in verdict.findings]
    told += answer.verification.inventory.findings
    decision = answer.resolution.decision
    point = decision.point if isinstance(decision, ResumePlan) else decision
    told += [*decision.findings, *point.findings, *(why for each in point.rejected for why in each.reasons)]
    return {(found.severity.word, found.code.value) for found in told if found.severity > Severity.NOTE}


@pytest.mark.sample(6)
@pytest.mark.parametrize("tree", sorted(truths()))
def test_of_a_healthy_tree_no_save_is_marked(tree: str, tmp_path: Path) -> None:
    try:
        shown = read(ckpttool.report(asked(healthy(tree, tmp_path))))
    except UnknownLayoutError:
        pytest.skip("no tree of checkpoints")
    assert {name: kinds for name, kinds in marks(shown).items() if kinds != {"ok"}} == {}
    grave = {(code, about) for weight, code, about, _ in findings(shown) if weight != "note"}
    by_design = {each for each in grave if each[0] == "weights-only" or each[1] in {"the tree", "the resume"}}
    assert grave - by_design == set()
