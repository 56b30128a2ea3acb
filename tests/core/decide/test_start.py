"""What speaks against a start as it stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.decide.start import start_findings
from ckpttool.core.domain.finding import Code, Finding, Severity, damage, unknown
from ckpttool.core.domain.plan import JudgedStart, Outcome, Rejection, Simulation
from tests.support.plans import resume_plan

PLAN = resume_plan()
NAME = PLAN.point.checkpoint.name


def start(name: str | None, outcome: Outcome = Outcome.LOADS) -> JudgedStart:
    told = Simulation(trainer="t", title="T", version=None, would_resume=name, outcome=outcome, because="it is so")
    return JudgedStart(simulation=told)


UNTOLD = JudgedStart(simulation=None, why="nobody said")


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (start("20_2"), "would load 20_2, not step 30 (15_2): it is so"),
        (start("20_2", Outcome.UNKNOWN), "would load 20_2, not step 30 (15_2): it is so"),
        (start("20_2", Outcome.STOPS), "would load 20_2 and then stop, not step 30 (15_2)"),
        (start(NAME, Outcome.STOPS), "would load 15_2 and then stop: it is so"),
        (start(None, Outcome.STOPS), "would stop without loading step 30 (15_2)"),
        (start(None, Outcome.SCRATCH), "would start at step 0 and not resume from step 30 (15_2)"),
        (start(None, Outcome.MIXES), "would load parts of several checkpoints, not step 30 (15_2)"),
        (
            replace(start(NAME), lacks="the steps are counted from 0"),
            "would load 15_2 without a part of it: the",
        ),
        (replace(start(NAME, Outcome.STOPS), lacks="so"), "would load 15_2 and then stop: it is so"),
        (replace(start(NAME), data="it skips 3"), "would load 15_2, but continue at another data position: it"),
    ],
)
def test_another_save_a_stop_and_a_beginning_at_0_stand_against_it(judged: JudgedStart, words: str) -> None:
    (finding,) = start_findings(judged, PLAN, trainer="T", config="a.yaml", remedy="do")
    assert (finding.code, finding.severity, finding.path, finding.remedy) == (
        Code.START_DIFFERS,
        Severity.SUSPECT,
        "a.yaml",
        "do",
    )
    assert f"as configured, T {words}" in finding.message
    assert judged.is_known


@pytest.mark.parametrize(
    ("outcome", "reason", "severity"),
    [
        (Outcome.UNKNOWN, unknown(Code.UNREADABLE, "input/output error"), Severity.UNKNOWN),
        (Outcome.UNKNOWN, damage(Code.SHARD_TRUNCATED, "ends early"), Severity.SUSPECT),
        (Outcome.STOPS, unknown(Code.UNREADABLE, "input/output error"), Severity.SUSPECT),
    ],
)
def test_to_take_a_save_that_could_not_be_read_is_not_known_to_be_wrong(
    outcome: Outcome, reason: Finding, severity: Severity
) -> None:
    rejected = Rejection(checkpoint=replace(PLAN.point.checkpoint, name="20_2"), reasons=(reason,))
    plan = replace(PLAN, point=replace(PLAN.point, rejected=(rejected,)))
    (finding,) = start_findings(start("20_2", outcome), plan, trainer="T", config=None, remedy="do")
    assert (finding.code, finding.severity) == (Code.START_DIFFERS, severity)
    assert ("it is unknown whether 20_2 is good" in finding.message) == (severity is Severity.UNKNOWN)


@pytest.mark.parametrize("outcome", [Outcome.LOADS, Outcome.UNKNOWN])
def test_nothing_stands_against_what_was_chosen(outcome: Outcome) -> None:
    assert start_findings(start(NAME, outcome), PLAN, trainer="T", config=None, remedy="do") == ()


@pytest.mark.parametrize(
    ("judged", "severity"),
    [
        (UNTOLD, Severity.UNKNOWN),
        (start(None, Outcome.UNKNOWN), Severity.UNKNOWN),
        (replace(UNTOLD, by_script=True), Severity.NOTE),
    ],
)
def test_what_nobody_knows_is_not_good_but_where_only_a_script_can_know(
    judged: JudgedStart, severity: Severity
) -> None:
    (finding,) = start_findings(judged, PLAN, trainer="T", config=None, remedy="do")
    assert (finding.code, finding.severity) == (Code.START_UNKNOWN, severity)
    assert judged.reason in finding.message
    assert judged.deed(PLAN.point.checkpoint) == "would load an unknown checkpoint"
